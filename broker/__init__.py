"""The queue: one contract, its adapters, and the event log with its fold."""
