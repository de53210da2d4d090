"""Speculative decoding: guesses how an answer goes on, checked by one forward instead of several."""
