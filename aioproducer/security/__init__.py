"""Checks of addresses, TLS, and authentication."""
