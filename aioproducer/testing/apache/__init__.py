"""A real Apache Kafka, in processes of its own."""
