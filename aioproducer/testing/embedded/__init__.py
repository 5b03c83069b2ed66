"""EmbeddedCluster: a Kafka cluster inside the process of a test."""
