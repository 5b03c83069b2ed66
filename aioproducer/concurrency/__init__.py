"""Tasks, wake-ups and threads of the producer's own."""
