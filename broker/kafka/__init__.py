"""The queue contract over Apache Kafka; see `adapter`."""
