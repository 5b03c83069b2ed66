"""The `aioproducer` command (the `cli` extra). Only `aioproducer.__main__` imports it."""
