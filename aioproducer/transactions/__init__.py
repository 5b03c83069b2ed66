"""The state of a transaction, its coordinator, and the calls of a transactional producer."""
