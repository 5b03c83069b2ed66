"""What can be set and under which names: kinds of values, the table of settings, other clients' keys, their files.

No setting is used here; `ProducerConfig` is made from what this package has checked. No I/O but reading a file."""
