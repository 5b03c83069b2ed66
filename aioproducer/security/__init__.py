"""Which addresses may be connected to, TLS, and authentication."""
