"""Producers with the calls of other clients, for code that was written for them."""
