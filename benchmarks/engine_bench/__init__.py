"""The parts of `benchmarks/engine.py`: the race against the peers, and measurements of ourselves."""
