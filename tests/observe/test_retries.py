"""Log lines about batches that are sent again: the first line of each kind, a count every 10 s, and a last line."""

from __future__ import annotations

import logging

import pytest

from aioproducer.observe.client_log import ClientLog
from aioproducer.observe.retries import MOST_AT_ONCE, PERIOD, Retries


class Log:
    """A producer's log lines about retries."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.retries = Retries(ClientLog("aioproducer.x", "orders"))

    def retry(
        self, now: float, topic: str = "t", partition: int = 0, name: str = "NOT_ENOUGH_REPLICAS"
    ) -> None:
        self.retries.note(topic, partition, name, f"{name}: no", 0.1, now)

    def new(self) -> list[str]:
        """Return the lines logged since the last call."""
        lines = [message.removeprefix("[producer orders] ") for message in self._caplog.messages]
        self._caplog.clear()
        return lines


@pytest.fixture
def log(caplog) -> Log:
    return Log(caplog)


def test_the_first_retry_has_its_line_and_the_next_ones_have_none(log):
    log.retry(0.0)
    assert log.new() == ["t-0: NOT_ENOUGH_REPLICAS: no; the batch will be sent again in 0.1 s"]

    log.retry(PERIOD - 0.1, partition=1)
    assert log.new() == []


def test_each_topic_and_each_error_has_its_own_first_line(log):
    log.retry(0.0)
    log.retry(0.0, topic="u")
    log.retry(0.0, name="REQUEST_TIMED_OUT")

    assert [line.split(";")[0] for line in log.new()] == [
        "t-0: NOT_ENOUGH_REPLICAS: no",
        "u-0: NOT_ENOUGH_REPLICAS: no",
        "t-0: REQUEST_TIMED_OUT: no",
    ]


def test_a_lasting_disturbance_is_counted_every_ten_seconds(log):
    log.retry(0.0)
    log.retry(4.0, partition=1)
    log.new()

    log.retry(PERIOD)
    assert log.new() == [
        "t: NOT_ENOUGH_REPLICAS for 10 s: batches were sent again 3 times since the last line; "
        "2 partitions are affected"
    ]
    log.retry(PERIOD * 2)
    assert log.new() == [
        "t: NOT_ENOUGH_REPLICAS for 20 s: batches were sent again once since the last line; 2 partitions are affected"
    ]


def test_a_disturbance_is_over_once_each_partition_has_accepted_a_batch(log):
    log.retry(0.0)
    log.retry(0.0, partition=1)
    log.new()

    log.retries.note_accepted("t", 0, 1.0)
    log.retries.note_accepted("u", 1, 1.0)
    assert log.new() == []
    assert log.retries.is_disturbed

    log.retries.note_accepted("t", 1, 2.0)
    assert log.new() == ["t: batches are accepted again; NOT_ENOUGH_REPLICAS lasted 2 s, with 2 retries"]
    assert not log.retries.is_disturbed


def test_an_intermittent_error_has_few_lines(log):
    for tenth in range(300):
        log.retry(tenth / 10)
        log.retries.note_accepted("t", 0, tenth / 10 + 0.05)

    lines = log.new()
    assert 3 <= len([line for line in lines if "again in" in line or "since the last line" in line]) <= 4
    assert len(lines) <= 8


@pytest.mark.parametrize("accepted_at", [1.0, PERIOD])
def test_an_error_that_returns_after_a_quiet_time_has_a_first_line_again(log, accepted_at):
    log.retry(0.0)
    log.retries.note_accepted("t", 0, accepted_at)
    log.new()

    log.retry(100.0)

    assert log.new() == ["t-0: NOT_ENOUGH_REPLICAS: no; the batch will be sent again in 0.1 s"]


def test_thousands_of_topics_have_a_few_lines_and_one_about_the_others(log):
    for number in range(1000):
        log.retry(number / 1000, topic=f"t{number}")

    lines = log.new()
    assert len(lines) == MOST_AT_ONCE + 1
    assert (
        lines[-1]
        == "batches for more topics are being sent again; they will be logged in 10 s if this continues"
    )

    log.retry(PERIOD + 1.0, topic="t999")
    assert len(log.new()) == 1, "its count includes the retries that had no line"


def test_a_kind_that_was_not_logged_ends_without_a_line(log):
    for number in range(MOST_AT_ONCE + 1):
        log.retry(0.0, topic=f"t{number}")
    log.new()

    log.retries.note_accepted(f"t{MOST_AT_ONCE}", 0, 1.0)

    assert log.new() == []
