"""The parts of `make pipeline`: the flights of 2013 through Spark to Kafka, and proved there. See __main__.py."""
