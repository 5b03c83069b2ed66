"""The settings: value types, the table of settings, the keys of other clients, and configuration files.

This package only checks settings; `ProducerConfig` is built from them. Its only I/O is reading a file."""
