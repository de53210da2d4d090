"""The service that pulls requests, runs them in an engine and settles them."""
