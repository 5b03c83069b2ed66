"""Pauses grow with each failure, up to a limit."""

from __future__ import annotations

from random import Random

import pytest

from aioproducer.network.backoff import FAST_RETRY, backoff, exponential


@pytest.mark.promise("Accumulator, sender, connections", "retries back off exponentially, with jitter")
@pytest.mark.promise("KIPs", "KIP-580: exponential back-off")
def test_backoff_doubles_up_to_a_maximum_with_a_fifth_of_jitter():
    random = Random(1)
    for failures, middle in [(0, 0.05), (1, 0.1), (2, 0.2), (4, 0.8), (5, 1.0), (10_000, 1.0)]:
        times = [backoff(0.05, 1.0, failures, random) for _ in range(1000)]
        assert min(times) >= middle * 0.8
        assert max(times) <= middle * 1.2
        assert max(times) - min(times) > middle * 0.35


def test_a_fast_retry_begins_with_milliseconds_and_is_limited_to_a_second():
    assert [exponential(*FAST_RETRY, failures) for failures in (0, 1, 5, 6, 10_000)] == [
        0.02,
        0.04,
        0.64,
        1.0,
        1.0,
    ]
