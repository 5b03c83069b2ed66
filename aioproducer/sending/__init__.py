"""The sender and what it makes of the brokers' answers."""
