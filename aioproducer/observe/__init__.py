"""Log lines, metrics, hooks and traces of a producer."""
