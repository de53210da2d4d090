"""The parts of the embedded Kafka: Java, the jars, a node."""
