"""The settings: types of values, the table of settings, the keys of other clients, and their files.

This package checks settings and does not use them: `ProducerConfig` is built from them. It does no I/O except reading
a file."""
