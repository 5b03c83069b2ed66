"""Computes the pauses after failed attempts. The pauses grow exponentially up to a limit."""

from __future__ import annotations

from random import Random

JITTER = 0.2
"""The maximum random change to a back-off, as a fraction, so that clients do not all reconnect at once."""

FAST_RETRY = (0.02, 1.0)
"""The first and the longest pause in seconds while a broker finishes a task that usually takes milliseconds, such as
writing the markers of the previous transaction. The task can take much longer while a leader is down."""


def exponential(base: float, maximum: float, failures: int) -> float:
    """Return how many seconds to wait, without jitter, after a failure preceded by `failures` others."""
    return min(base * 2.0 ** min(failures, 32), maximum)


def backoff(base: float, maximum: float, failures: int, random: Random) -> float:
    """Return how many seconds to wait, with jitter, after a failure preceded by `failures` others. The pause grows
    exponentially up to `maximum`, not counting the jitter."""
    return exponential(base, maximum, failures) * random.uniform(1 - JITTER, 1 + JITTER)
