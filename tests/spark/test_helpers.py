"""Tests of the sink's helpers: invalid arguments, and repeated batches."""

from __future__ import annotations

import pytest

from aioproducer.spark.helpers import foreach_batch, partition_by_key


@pytest.mark.parametrize("partitions", [0, -1, 1.5, True, "3"])
def test_the_number_of_partitions_is_a_whole_number(partitions):
    with pytest.raises(ValueError, match="must be the number of partitions in the topic"):
        partition_by_key(None, partitions)


def test_a_batch_is_tried_at_least_once():
    with pytest.raises(ValueError, match="attempts=0 must be 1 or more"):
        foreach_batch({}, attempts=0)


class Batch:
    """A DataFrame whose write fails a few times."""

    def __init__(self, failures: int) -> None:
        self.failures, self.tries, self.told = failures, 0, {}
        self.write = self

    def format(self, name: str) -> Batch:
        assert name == "aioproducer"
        return self

    def options(self, **told: str) -> Batch:
        self.told = told
        return self

    def mode(self, name: str) -> Batch:
        return self

    def save(self) -> None:
        self.tries += 1
        if self.tries <= self.failures:
            raise RuntimeError("executor lost")


def test_a_failed_batch_is_run_again_under_the_same_version():
    batch = Batch(failures=2)

    foreach_batch({"topic": "t"}, app_id="query")(batch, 7)

    assert batch.tries == 3
    assert batch.told["txnVersion"] == "7"
    assert batch.told["txnAppId"] == "query"
    assert batch.told["delivery"] == "exactly_once"


def test_the_last_failure_is_raised():
    batch = Batch(failures=5)

    with pytest.raises(RuntimeError, match="executor lost"):
        foreach_batch({"topic": "t", "delivery": "at_least_once"}, attempts=2)(batch, 7)

    assert batch.tries == 2
    assert "txnVersion" not in batch.told
