"""The producer's own tasks, threads and wake-up event."""
