"""The command `aioproducer` (extra `cli`). Only `aioproducer.__main__` imports it."""
