"""The sender and the handling of the brokers' answers."""
