"""Judges a schedule by what confluent-kafka reads when all is over: whatever a producer told anybody must be so.

The rules are those of the simulation (`tests/simulation/oracle.py`). One topic is deleted and created again, and a
reader sees its last log only. What is claimed of it: a record that was sent when no broker knew the old topic any
more, and was acknowledged, is in the new log, once, at its offset. Earlier ones may have gone with the old log. No
record is twice in the new log, none is out of order, and none is there that is NOT_PERSISTED."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tests.chaos.history import ChaosHistory
from tests.chaos.world import MADE_ANEW
from tests.read_back import Log
from tests.simulation import oracle


class ReadLogs:
    """The logs of all topics in the shape in which the simulation's rules look at them."""

    def __init__(self, everything: Mapping[str, Log], committed: Mapping[str, Log]) -> None:
        self.by_partition = _numbers(everything)
        self.committed = _numbers(committed)
        self.starts: dict[tuple[str, int], list[int]] = defaultdict(list)
        """Nothing is deleted from the beginning of a log."""
        self.numbers = Counter(
            number for logs in self.by_partition.values() for log in logs for number in log.values()
        )


def _numbers(topics: Mapping[str, Log]) -> dict[tuple[str, int], list[oracle.Log]]:
    found: dict[tuple[str, int], list[oracle.Log]] = defaultdict(list)
    for topic, log in topics.items():
        for partition, records in log.items():
            found[topic, partition] = [{record.offset: oracle.number_of(record.value) for record in records}]
    return found


def verdict(history: ChaosHistory, logs: ReadLogs) -> list[str]:
    """Every promise that was broken, in sentences."""
    found = [f"while it ran: {problem}" for problem in history.problems]
    for rule in RULES:
        found += [f"{rule.__name__}: {sentence}" for sentence in rule(history, logs)]
    return found


def every_acknowledged_record_is_in_the_log(history: ChaosHistory, logs: ReadLogs) -> Iterator[str]:
    """But for those that went with the log of a topic that was deleted."""
    claimed = [
        sent for sent in history.sent if sent.topic != MADE_ANEW or sent.asked_at >= history.made_anew_at
    ]
    yield from oracle.every_acknowledged_record_is_in_the_log(replace(history, sent=claimed), logs)


def every_transaction_was_ended(history: ChaosHistory, logs: ReadLogs) -> Iterator[str]:
    for transaction in history.transactions:
        if transaction.ended is oracle.Ended.OPEN:
            yield f"transaction {transaction.number} was never ended"


RULES = (
    every_acknowledged_record_is_in_the_log,
    oracle.nothing_is_there_twice,
    oracle.order_is_kept,
    oracle.every_call_and_delivery_ends_in_time,
    oracle.nothing_not_persisted_is_there,
    oracle.nothing_is_there_that_nobody_sent,
    oracle.transactions_are_visible_as_told,
    every_transaction_was_ended,
)
