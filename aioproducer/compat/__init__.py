"""Producers with the methods of other clients, for code that was written for those clients."""
