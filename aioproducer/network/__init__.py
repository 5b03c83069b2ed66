"""Connections to brokers, and the cluster metadata that brokers report."""
