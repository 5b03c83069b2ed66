"""Connections to brokers, and what they say of the cluster."""
