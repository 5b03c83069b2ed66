"""Judges a schedule by what confluent-kafka reads at the end: every result that a producer reported must be true.

The rules are those of the simulation (`../simulation/oracle.py`). One topic is deleted and re-created, and readers
see only its last log. For that topic, an acknowledged record that was sent when no broker knew the old topic any longer
must be in the new log once, at its offset. Earlier records may be lost with the old log. The new log contains
no record twice, none out of order, and none that was reported as NOT_PERSISTED."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from tests.campaigns.chaos.faults import FAULTS, Family
from tests.campaigns.chaos.history import ChaosHistory
from tests.campaigns.chaos.world import MADE_ANEW, STEADY
from tests.campaigns.simulation import oracle
from tests.campaigns.simulation.history import Sent, Told
from tests.support.read_back import Log


class ReadLogs:
    """The logs of all topics, in the form that the simulation's rules expect."""

    def __init__(self, everything: Mapping[str, Log], committed: Mapping[str, Log]) -> None:
        self.by_partition = _numbers(everything)
        self.committed = _numbers(committed)
        self.starts: dict[tuple[str, int], list[int]] = defaultdict(list)
        """Empty: records are never deleted from the beginning of a log."""
        self.producer_ids: dict[tuple[str, int], list[set[int]]] = defaultdict(list)
        """Empty: a consumer does not see them. A new id is no excuse for records out of order here."""
        self.numbers = Counter(
            number for logs in self.by_partition.values() for log in logs for number in log.values()
        )

    @property
    def places(self) -> dict[int, tuple[str, int, int]]:
        """The topic, partition and offset of each number."""
        return {
            number: (topic, partition, offset)
            for (topic, partition), logs in self.by_partition.items()
            for log in logs
            for offset, number in log.items()
        }

    @property
    def visible(self) -> Counter[int]:
        """How often a consumer with isolation.level=read_committed sees each number."""
        return Counter(number for logs in self.committed.values() for log in logs for number in log.values())

    def of(self, numbers: Collection[int]) -> ReadLogs:
        """Return the same logs with only these records."""
        some = copy.copy(self)
        some.by_partition, some.committed = (
            {
                place: [{at: number for at, number in log.items() if number in numbers} for log in found]
                for place, found in logs.items()
            }
            for logs in (self.by_partition, self.committed)
        )
        return some


def _numbers(topics: Mapping[str, Log]) -> dict[tuple[str, int], list[oracle.Log]]:
    found: dict[tuple[str, int], list[oracle.Log]] = defaultdict(list)
    for topic, log in topics.items():
        for partition, records in log.items():
            found[topic, partition] = [{record.offset: oracle.number_of(record.value) for record in records}]
    return found


def verdict(history: ChaosHistory, logs: ReadLogs) -> list[str]:
    """Return a sentence for each broken promise."""
    found = [f"while it ran: {problem}" for problem in history.problems]
    for rule in RULES:
        found += [f"{rule.__name__}: {sentence}" for sentence in rule(history, logs)]
    for weaker, own in _weaker(history, logs):
        for sent in weaker.sent:
            history.lost[sent.producer] += sent.told is Told.ACKNOWLEDGED and not logs.numbers[sent.number]
        for rule in WEAKER_RULES:
            found += [f"{rule.__name__}: {sentence}" for sentence in rule(weaker, own)]
    return found


def claimed(history: ChaosHistory) -> list[Sent]:
    """Return the records that must not be lost: all except those that may be lost with the log of a deleted topic."""
    return [sent for sent in history.sent if sent.topic != MADE_ANEW or sent.asked_at >= history.made_anew_at]


def _of_all(history: ChaosHistory) -> list[Sent]:
    """Return the records sent with acks=all."""
    return [sent for sent in history.sent if sent.producer not in history.acks_of]


def _weaker(history: ChaosHistory, logs: ReadLogs) -> Iterator[tuple[ChaosHistory, ReadLogs]]:
    """Yield the records of each producer with less than acks=all, and the logs with only these records."""
    for label, acks in history.acks_of.items():
        sent = [one for one in claimed(history) if one.producer == label]
        yield (
            replace(history, sent=sent, acks=acks, is_idempotent=False),
            logs.of({one.number for one in sent}),
        )


def every_acknowledged_record_is_in_the_log(history: ChaosHistory, logs: ReadLogs) -> Iterator[str]:
    """Records that were lost with the log of a deleted topic are exempt."""
    own = [sent for sent in claimed(history) if sent.producer not in history.acks_of]
    yield from oracle.every_acknowledged_record_is_in_the_log(replace(history, sent=own), logs)


def nothing_is_there_twice(history: ChaosHistory, logs: ReadLogs) -> Iterator[str]:
    yield from oracle.nothing_is_there_twice(history, logs.of({sent.number for sent in _of_all(history)}))


def order_is_kept(history: ChaosHistory, logs: ReadLogs) -> Iterator[str]:
    yield from oracle.order_is_kept(replace(history, sent=_of_all(history)), logs)


def transactions_are_visible_as_told(history: ChaosHistory, logs: ReadLogs) -> Iterator[str]:
    """A transaction is exempt if the brokers' files prove that the brokers ended it twice."""
    others = [one for one in history.transactions if one.number not in history.ended_twice]
    yield from oracle.transactions_are_visible_as_told(replace(history, transactions=others), logs)


def every_transaction_was_ended(history: ChaosHistory, logs: ReadLogs) -> Iterator[str]:
    for transaction in history.transactions:
        if transaction.ended is oracle.Ended.OPEN:
            yield f"transaction {transaction.number} was never ended"


def each_group_is_where_its_last_commit_left_it(history: ChaosHistory, logs: ReadLogs) -> Iterator[str]:
    for label, position in history.positions.items():
        may_be: set[int | None] = {None}
        for transaction in history.transactions:
            if history.owners[transaction.number] != label or transaction.offset is None:
                continue
            if transaction.ended is oracle.Ended.COMMITTED:
                may_be = {transaction.offset}
            elif transaction.ended is oracle.Ended.UNKNOWN:
                may_be.add(transaction.offset)
        if position not in may_be:
            yield f"the position of {label} is {position}, not one of {sorted(map(str, may_be))}"


def every_record_is_copied_once(history: ChaosHistory, logs: ReadLogs) -> Iterator[str]:
    """This holds even if brokers fail and the copier is replaced."""
    if history.copies is None:
        return
    source = Counter(
        number
        for (topic, _), found in logs.committed.items()
        if topic == STEADY
        for log in found
        for number in log.values()
    )
    for number in source.keys() | history.copies.keys():
        if source[number] != history.copies[number]:
            yield f"record {number} is in the source {source[number]} times, and copied {history.copies[number]} times"


# Producers with less than acks=all


def with_acks_1_only_a_lost_leader_loses_records(history: ChaosHistory, logs: ReadLogs) -> Iterator[str]:
    """Only records that no follower had can be lost. Until a leader is lost, all records are in the log, in order."""
    if history.acks == 1 and not LEADERS_LOST & history.fired.keys():
        yield from oracle.every_acknowledged_record_is_in_the_log(history, logs)
        yield from oracle.order_is_kept(history, logs)


def with_acks_0_nothing_is_sent_twice(history: ChaosHistory, logs: ReadLogs) -> Iterator[str]:
    """A record that may have been sent is never sent again. Order is kept until a broker or a connection falls
    behind."""
    if history.acks != 0:
        return
    yield from oracle.nothing_is_there_twice(history, logs)
    if not FALLS_BEHIND & history.fired.keys():
        yield from oracle.order_is_kept(replace(history, acks="all", is_idempotent=True), logs)


LEADERS_LOST = {fault.name for fault in FAULTS.values() if fault.family is Family.BROKERS}
"""Faults after which another replica, which may lack some records, becomes the leader."""
FALLS_BEHIND = {"frozen", "coordinator frozen in mid-commit", "throttled"}
"""Faults after which the requests of a closed connection may be read later than those of the next one."""
WEAKER_RULES = (with_acks_1_only_a_lost_leader_loses_records, with_acks_0_nothing_is_sent_twice)


RULES = (
    every_acknowledged_record_is_in_the_log,
    nothing_is_there_twice,
    order_is_kept,
    oracle.every_call_and_delivery_ends_in_time,
    oracle.nothing_not_persisted_is_there,
    oracle.nothing_is_there_that_was_never_sent,
    transactions_are_visible_as_told,
    every_transaction_was_ended,
    each_group_is_where_its_last_commit_left_it,
    every_record_is_copied_once,
)
