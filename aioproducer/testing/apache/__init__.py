"""A real Apache Kafka, running in separate processes."""
