"""The settings: value types, the table of settings, the keys of other clients, and configuration files.

This package only checks settings; `ProducerConfig` is built from its results. It does no I/O except reading
configuration files."""
