"""The parts of `benchmarks/queue.py`: one file a measurement, and what they share."""
