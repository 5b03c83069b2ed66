"""Addresses that may be connected to, TLS, and who the client is."""
