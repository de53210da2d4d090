"""The queue over Redis Streams."""
