"""The engine: scheduler, KV memory, models, sampling. It knows nothing of queues."""
