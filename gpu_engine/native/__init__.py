"""The CPU engine's own arithmetic: weights packed for the processor's vectors, a decoder step in one call.

`kernels/cpu` holds the C++; this package gives it tensors. Where it cannot be built, or a model does not suit
it, the torch decoder serves.
"""
