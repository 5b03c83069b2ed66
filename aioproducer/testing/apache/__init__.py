"""A real Kafka cluster, running in separate processes."""
