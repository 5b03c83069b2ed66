"""The command `aioproducer` (extra `cli`). Built on the public names; nothing in the package imports it."""
