"""The parts of `make pipeline`, which sends the flights of 2013 through Spark to Kafka. See __main__.py."""
