"""Tests of the sink's helpers: invalid arguments, and repeated batches and queries."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.errors import StreamingQueryException

from aioproducer import ConfigError
from aioproducer.spark import SinkError, helpers
from aioproducer.spark.exactly_once import AGAIN
from aioproducer.spark.helpers import _asked, foreach_batch, partition_by_key, run_query
from tests.support.spark_stage import stage
from tests.support.tracebacks import assert_no_frame_shows


@pytest.mark.parametrize("partitions", [0, -1, 1.5, True, "3", None, {}, {"t": 3, "u": 0}])
def test_the_number_of_partitions_must_be_a_whole_number(partitions):
    with pytest.raises(ValueError, match="must be the number of partitions in the topic"):
        partition_by_key(None, partitions)


def test_the_cluster_is_asked_for_the_numbers_of_partitions():
    with stage(1, topics={"t": 3, "u": 1}) as cluster:
        servers = {"kafka.bootstrap.servers": cluster.servers}
        once = {"delivery": "exactly_once", "transactionalId": "x"}

        assert _asked({**servers, "topic": "t"}) == 3
        assert _asked({**servers, **once, "topics": "t,u"}) == {"t": 3, "u": 1}


PASSWORD = "-".join(["canary", "password"])
LOGIN = {
    "kafka.bootstrap.servers": "a:1",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "u",
    "kafka.sasl.password": PASSWORD,
    "topic": "t",
}


@pytest.mark.parametrize("wrong", [{"kafka.acks": "nine"}, {"no such option": 1}, {5: 1}])
def test_no_frame_of_a_question_with_wrong_options_shows_a_password(wrong):
    with pytest.raises(ConfigError) as caught:
        partition_by_key(None, options={**LOGIN, **wrong})

    assert_no_frame_shows(caught.value, PASSWORD)


def test_no_frame_shows_a_password_after_the_question(monkeypatch):
    monkeypatch.setattr(helpers, "_asked", lambda options: 0)

    with pytest.raises(ValueError, match="partitions=0") as caught:
        partition_by_key(None, options=LOGIN)

    assert_no_frame_shows(caught.value, PASSWORD)


def test_a_batch_is_tried_at_least_once():
    with pytest.raises(ValueError, match="attempts=0 must be 1 or more"):
        foreach_batch({}, attempts=0)


LOST = "executor 1 on a:1 was lost: killed"


@pytest.fixture
def losses(monkeypatch):
    """The losses that Spark reports; the test adds them."""
    found = []
    watch = SimpleNamespace(losses=lambda: list(found))
    monkeypatch.setattr(helpers, "ExecutorLosses", lambda spark, group: watch)
    return found


class Settings(dict[str, str]):
    """The settings of a session."""

    def set(self, name: str, value: str) -> None:
        self[name] = value

    def unset(self, name: str) -> None:
        del self[name]


class Batch:
    """A DataFrame whose write fails a given number of times."""

    def __init__(self, failures: int, speculation: str = "false") -> None:
        self.failures, self.tries, self.told = failures, 0, {}
        self.write = self
        self.sparkSession = SimpleNamespace(conf=Settings({"spark.speculation": speculation}))

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


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_no_frame_of_a_failed_batch_shows_a_password(delivery):
    with pytest.raises(RuntimeError) as caught:
        foreach_batch({**LOGIN, "delivery": delivery}, app_id="query")(Batch(failures=5), 7)
    assert_no_frame_shows(caught.value, PASSWORD)

    with pytest.raises(ValueError, match="attempts=0") as caught:
        foreach_batch(LOGIN, attempts=0)
    assert_no_frame_shows(caught.value, PASSWORD)


def test_the_password_is_among_the_options_of_the_write():
    batch = Batch(failures=0)

    foreach_batch(LOGIN, app_id="query")(batch, 7)

    assert batch.told["kafka.sasl.password"] == PASSWORD


def test_the_last_failure_is_raised():
    batch = Batch(failures=5)

    with pytest.raises(RuntimeError, match="executor lost"):
        foreach_batch({"topic": "t", "delivery": "at_least_once"}, attempts=2)(batch, 7)

    assert batch.tries == 2
    assert "txnVersion" not in batch.told


def test_the_last_failure_names_the_lost_executor(losses, caplog):
    losses.append(LOST)
    batch = Batch(failures=2)

    with pytest.raises(
        SinkError, match=f"batch 7 was not written in 2 attempts: executor lost\nSpark reports: {LOST}"
    ):
        foreach_batch({"topic": "t"}, app_id="query", attempts=2)(batch, 7)

    assert f"attempt 1 of 2 for batch 7 failed; retrying: executor lost\nSpark reports: {LOST}" in caplog.text


@pytest.mark.promise("Spark", "speculation and the continuous trigger are rejected on the driver")
def test_speculation_is_rejected_before_anything_is_written():
    batch = Batch(failures=0, speculation="true")

    with pytest.raises(SinkError, match=r"spark\.speculation is on.*Set spark\.speculation=false"):
        foreach_batch({"topic": "t"}, app_id="query")(batch, 7)
    assert batch.tries == 0

    foreach_batch({"topic": "t", "delivery": "at_least_once"})(batch, 7)
    assert batch.tries == 1


class Query:
    """A query that fails with an error, or ends."""

    def __init__(self, error: str = "", progress: int = 0) -> None:
        self.error, self.lastProgress, self.runId = error, {"batchId": progress} if progress else None, "run"

    def awaitTermination(self) -> None:
        if self.error:
            raise StreamingQueryException(self.error)


@pytest.fixture
def started(monkeypatch, losses):
    """A function that returns a list of queries in the order in which pop() starts them."""
    monkeypatch.setattr(helpers.SparkSession, "active", lambda: None)
    return lambda *queries: [*reversed(queries)]


@pytest.mark.promise("Spark", "a query is restarted if an executor was lost, up to a limited number of times")
def test_a_query_is_started_again_after_a_loss(started, losses, caplog):
    losses.append(LOST)
    queries = started(Query(f"exactly_once: ... {AGAIN}"), Query("ExecutorLostFailure (executor 1)"), Query())

    assert run_query(queries.pop).error == ""

    assert not queries
    assert LOST in caplog.text


@pytest.mark.promise("Spark", "a query is restarted if an executor was lost, up to a limited number of times")
def test_the_error_of_a_batch_that_fails_too_often_names_the_losses(started, losses):
    losses.append(LOST)
    queries = started(Query(AGAIN), Query(AGAIN, progress=3), Query(AGAIN), Query())

    with pytest.raises(SinkError, match=f"a batch was not written in 2 attempts.*\n?Spark reports: {LOST}"):
        run_query(queries.pop, attempts=2)

    assert len(queries) == 1


def test_a_query_that_fails_for_another_reason_is_not_started_again(started):
    queries = started(Query("the user's own"), Query())

    with pytest.raises(StreamingQueryException, match="the user's own"):
        run_query(queries.pop)

    assert len(queries) == 1


def test_a_query_has_at_least_one_attempt():
    with pytest.raises(ValueError, match="attempts=0 must be 1 or more"):
        run_query(Query, attempts=0)
