"""Tensor parallelism: one model on several processes, each with its share of every matrix."""
