"""A network and an event loop in virtual time."""
