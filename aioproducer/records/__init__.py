"""The buffer: batches, the record path that fills them, and the accumulator that keeps them by partition."""
