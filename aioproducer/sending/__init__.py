"""The sender, the handling of the brokers' responses, and the producer's start and end."""
