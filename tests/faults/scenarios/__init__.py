"""Faults, one scenario each, the same on every broker: `table.py` lists them."""
