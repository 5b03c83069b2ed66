"""Judges a simulated run by its logs: every result that the producer reported must be true.

Each rule is a function that yields a sentence for each violation; a correct run has none."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from aioproducer.errors import BrokerError, BufferFullError, DeliveryError, DeliveryTimeoutError
from aioproducer.protocol.outcomes import Moment
from aioproducer.sending.numbering import NEW_EPOCH
from tests.campaigns.simulation.history import Ended, History, Sent, SimulatedTransaction, Told

SLACK = 0.002
"""Seconds of tolerance. The sender's timers are deliberately a millisecond late, because event loops
count in milliseconds."""

Log = dict[int, int]
"""The number of the record at each offset."""


def number_of(value: bytes | None) -> int:
    """Return the number at the beginning of a record's value."""
    return int((value or b"-1").partition(b" ")[0])


class Logs:
    """The contents of the logs at the end."""

    def __init__(self, history: History) -> None:
        self.by_partition: dict[tuple[str, int], list[Log]] = defaultdict(list)
        """One log for each incarnation of the topic."""
        self.committed: dict[tuple[str, int], list[Log]] = defaultdict(list)
        self.starts: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.producer_ids: dict[tuple[str, int], list[set[int]]] = defaultdict(list)
        """The producer ids in each log."""
        self.numbers: Counter[int] = Counter()
        self.visible: Counter[int] = Counter()
        """How often read_committed consumers see each number."""
        for topic in history.incarnations:
            for partition in topic.partitions:
                place = topic.name, partition.index
                log = {record.offset: number_of(record.value) for record in partition.records()}
                self.by_partition[place].append(log)
                self.committed[place].append(
                    {record.offset: number_of(record.value) for record in partition.records(committed=True)}
                )
                self.producer_ids[place].append({batch.header.producer_id for batch in partition.log.batches})
                self.visible.update(self.committed[place][-1].values())
                self.starts[place].append(partition.log.start_offset)
                self.numbers.update(log.values())


def verdict(history: History) -> list[str]:
    """Return a sentence for each broken promise."""
    logs = Logs(history)
    found = [f"while it ran: {problem}" for problem in history.problems]
    for rule in RULES:
        found += [f"{rule.__name__}: {sentence}" for sentence in rule(history, logs)]
    return found


def _name(sent: Sent) -> str:
    return f"record {sent.number} for {sent.topic}-{sent.partition} of {sent.producer}"


def every_acknowledged_record_is_in_the_log(history: History, logs: Logs) -> Iterator[str]:
    """Each is there exactly once, at the reported offset."""
    if history.acks == 0:
        return  # acks=0 has no acknowledgements from brokers
    for sent in history.sent:
        if sent.told is not Told.ACKNOWLEDGED:
            continue
        place = sent.topic, sent.partition or 0
        if sent.number in history.truncated.get(place, ()) and history.acks == 1:
            continue
        if sent.offset is None:
            if not any(sent.number in log.values() for log in logs.by_partition[place]):
                yield f"{_name(sent)} was acknowledged and is missing"
        elif any(log.get(sent.offset) == sent.number for log in logs.by_partition[place]):
            pass
        elif not any(sent.offset < start for start in logs.starts[place]):
            found = [log.get(sent.offset) for log in logs.by_partition[place]]
            yield f"{_name(sent)} was acknowledged at {sent.offset}, where there is {found}"


def nothing_is_there_twice(history: History, logs: Logs) -> Iterator[str]:
    """This holds for each log; a re-created topic has another log."""
    if not history.is_idempotent and history.acks != 0:
        return
    for place, incarnations in logs.by_partition.items():
        for log in incarnations:
            for number, count in Counter(log.values()).items():
                if count > 1:
                    yield f"record {number} is {count} times in {place[0]}-{place[1]}"


def order_is_kept(history: History, logs: Logs) -> Iterator[str]:
    """The records of a task in a partition are in order. Without idempotence, only the acknowledged ones have to
    be.

    A record of unknown outcome may be behind later ones if the producer has taken a new id in the meantime, because
    the new id does not fence late requests of the old one."""
    if history.acks == 0:
        return
    by_task: dict[tuple[str, int, str, int], list[Sent]] = defaultdict(list)
    for sent in history.sent:
        if sent.partition is not None and sent.buffered_at is not None:
            by_task[sent.topic, sent.partition, sent.producer, sent.task].append(sent)
    for (topic, partition, _, _), group in by_task.items():
        if history.is_idempotent:
            for log in logs.by_partition[topic, partition]:
                offsets = {number: offset for offset, number in log.items()}
                is_new_id = any(len(ids) > 1 for ids in logs.producer_ids[topic, partition])
                yield from _out_of_order(
                    [
                        (sent, offsets.get(sent.number))
                        for sent in group
                        if not (is_new_id and sent.told is Told.UNKNOWN)
                    ]
                )
        elif not history.truncated.get((topic, partition)) and len(logs.by_partition[topic, partition]) == 1:
            acked = [sent for sent in group if sent.told is Told.ACKNOWLEDGED]
            yield from _out_of_order([(sent, sent.offset) for sent in acked])


def _out_of_order(group: list[tuple[Sent, int | None]]) -> Iterator[str]:
    last: tuple[Sent, int] | None = None
    for sent, offset in group:
        if offset is None:
            continue
        if last is not None and offset < last[1]:
            yield f"{_name(sent)} is at {offset}, the earlier record {last[0].number} of this task at {last[1]}"
        last = sent, offset


def every_call_and_delivery_ends_in_time(history: History, logs: Logs) -> Iterator[str]:
    """`send` ends within max_block_ms, a delivery within delivery_timeout_ms of `send`. With endless retries, the
    delivery of a record that was sent may end later."""
    for sent in history.sent:
        if sent.buffered_at is not None and sent.buffered_at > sent.call_due + SLACK:
            yield f"{_name(sent)}: send took {sent.buffered_at - sent.asked_at:.3f} s"
        if sent.ended_at is None:
            if sent.told is Told.NOTHING:
                yield f"{_name(sent)} never ended"
        elif (
            sent.buffered_at is not None
            and sent.ended_at > sent.due + SLACK
            and not _may_be_late(sent, history)
        ):
            yield f"{_name(sent)} ended {sent.ended_at - sent.due:.3f} s too late ({sent.told.value})"


def _may_be_late(sent: Sent, history: History) -> bool:
    assert sent.ended_at is not None
    if not history.is_endless or sent.ended_at > sent.own_due + SLACK:
        return False
    return not isinstance(sent.error, DeliveryError) or sent.error.attempts > 0


def nothing_times_out_early(history: History, logs: Logs) -> Iterator[str]:
    """A delivery times out when its own timeout or the deadline of its batch has passed, unless the producer closes."""
    for sent in history.sent:
        if (
            isinstance(sent.error, DeliveryTimeoutError)
            and sent.ended_at is not None
            and sent.ended_at < min(sent.own_due, sent.deadline) - SLACK
            and (history.closing_at is None or sent.ended_at < history.closing_at)
        ):
            early = min(sent.own_due, sent.deadline) - sent.ended_at
            yield f"{_name(sent)} timed out {early:.3f} s too early: {sent.error!r}"


def nothing_in_doubt_is_given_up(history: History, logs: Logs) -> Iterator[str]:
    """With endless retries, a record ends as unknown only because of a broker's answer, close() or its own timeout;
    or because its topic was re-created, or an earlier record in its partition failed."""
    if not history.is_endless:
        return
    for sent in history.sent:
        error = sent.error
        if (
            sent.told is not Told.UNKNOWN
            or sent.ended_at is None
            or sent.ended_at >= sent.own_due - SLACK
            or not isinstance(error, DeliveryError)
            or (history.closing_at is not None and sent.ended_at >= history.closing_at)
        ):
            continue
        has_reason = (
            isinstance(error.last_error, BrokerError)
            or len(history.incarnations) > 1
            or (history.is_gapless and Moment.BEHIND.value in str(error))
            or (NEW_EPOCH in str(error) and _follows_a_failed_record(sent, history))
        )
        if isinstance(error, DeliveryTimeoutError) or not has_reason:
            yield f"{_name(sent)} was given up as unknown before close(): {error!r}"


def _follows_a_failed_record(sent: Sent, history: History) -> bool:
    return any(
        other.told is Told.NOT_PERSISTED
        and (other.topic, other.partition, other.producer) == (sent.topic, sent.partition, sent.producer)
        and other.ended_at is not None
        and sent.ended_at is not None
        and other.ended_at <= sent.ended_at
        for other in history.sent
    )


def no_gap_is_in_the_log(history: History, logs: Logs) -> Iterator[str]:
    """In gapless order, no record that was buffered behind a failed one is in the log, unless the failed one also
    is."""
    if not history.is_gapless:
        return
    by_partition: dict[tuple[str, int, str], list[Sent]] = defaultdict(list)
    for sent in history.sent:
        if sent.partition is not None and sent.buffered_at is not None:
            by_partition[sent.topic, sent.partition, sent.producer].append(sent)
    for (topic, partition, _), group in by_partition.items():
        for failed in group:
            if (
                failed.told not in (Told.NOT_PERSISTED, Told.UNKNOWN)
                or failed.ended_at is None
                or logs.numbers[failed.number]
                or failed.number in history.truncated.get((topic, partition), ())
            ):
                continue
            for later in group:
                if logs.numbers[later.number] and _was_behind(later, failed):
                    yield (
                        f"{_name(failed)} failed ({failed.error!r}), but record {later.number} behind it is in "
                        "the log"
                    )
                    break


def _was_behind(later: Sent, failed: Sent) -> bool:
    """Return True if it was accepted after the other record, and before that one's failure was known."""
    assert later.buffered_at is not None
    assert failed.buffered_at is not None
    assert failed.ended_at is not None
    if later.buffered_at >= failed.ended_at:
        return False
    if later.task == failed.task:
        return later.number > failed.number
    return later.asked_at > failed.buffered_at


def nothing_fails_for_no_reason(history: History, logs: Logs) -> Iterator[str]:
    """In an undisturbed run every record is acknowledged or belongs to a transaction that its user aborted."""
    if history.is_disturbed:
        return
    for sent in history.sent:
        ended = sent.transaction.ended if sent.transaction is not None else Ended.COMMITTED
        if isinstance(sent.error, BufferFullError):
            continue  # try_send does not even wait for the first metadata
        is_needless = ended is not Ended.ABORTED or sent.told is Told.UNKNOWN
        if sent.told is not Told.ACKNOWLEDGED and is_needless:
            yield f"{_name(sent)}: {sent.told.value} ({sent.error!r})"


def no_transaction_fails_for_no_reason(history: History, logs: Logs) -> Iterator[str]:
    """In an undisturbed run every transaction ends as its user intended."""
    if history.is_disturbed:
        return
    for transaction in history.transactions:
        if transaction.error is not None or transaction.ended in (Ended.UNKNOWN, Ended.OPEN):
            yield f"transaction {transaction.number}: {transaction.ended.value} ({transaction.error!r})"


def nothing_not_persisted_is_there(history: History, logs: Logs) -> Iterator[str]:
    for sent in history.sent:
        if sent.told is Told.NOT_PERSISTED and logs.numbers[sent.number]:
            yield f"{_name(sent)} was reported as not persisted ({sent.error!r}) but is in the log"


def nothing_is_there_that_was_never_sent(history: History, logs: Logs) -> Iterator[str]:
    known = {sent.number: sent for sent in history.sent}
    for (topic, partition), incarnations in logs.by_partition.items():
        for log in incarnations:
            for number in log.values():
                sent = known.get(number)
                if sent is None or sent.topic != topic or sent.partition not in (partition, None):
                    yield f"record {number} is in {topic}-{partition}, but was not sent there"


def transactions_are_visible_as_told(history: History, logs: Logs) -> Iterator[str]:
    """With read_committed, committed transactions are visible completely, those in doubt completely or not at all,
    others not at all."""
    visible = logs.visible
    deleted_from = {topic.name for topic in history.incarnations[:-1]}
    by_transaction: dict[int, list[Sent]] = defaultdict(list)
    for sent in history.sent:
        if sent.transaction is not None and sent.buffered_at is not None:
            by_transaction[sent.transaction.number].append(sent)
    for transaction in history.transactions:
        group = by_transaction[transaction.number]
        seen = [sent for sent in group if visible[sent.number]]
        if transaction.ended is Ended.COMMITTED:
            for sent in group:
                if sent.told in (Told.NOT_PERSISTED, Told.UNKNOWN):
                    yield f"transaction {transaction.number} was committed without {_name(sent)}: {sent.error!r}"
                elif not visible[sent.number] and sent.topic not in deleted_from:
                    yield f"transaction {transaction.number} was committed but {_name(sent)} is not visible"
        elif transaction.ended is Ended.UNKNOWN:
            if seen and len(seen) != len(group) and not {sent.topic for sent in group} & deleted_from:
                yield (
                    f"transaction {transaction.number}, of unknown outcome, is visible in part: "
                    f"{len(seen)} of {len(group)}"
                )
        elif seen:
            yield (
                f"transaction {transaction.number} was not committed ({transaction.ended.value}, "
                f"{transaction.error!r}) but {_name(seen[0])} is visible"
            )


def the_group_is_where_the_last_commit_left_it(history: History, logs: Logs) -> Iterator[str]:
    """In each partition the position is that of the last committed transaction with a position for it, whatever
    uncommitted transactions sent. It may be lower than an earlier one."""
    places = {place for transaction in history.transactions for place in transaction.offsets}
    for place in sorted(places | history.group_offsets.keys()):
        may_be: set[int | None] = {None}
        for transaction in history.transactions:
            if place not in transaction.offsets:
                continue
            ended = _ended(transaction, history, logs)
            if ended is Ended.COMMITTED:
                # With two producers it is not known here which of them committed last.
                may_be = {*(may_be if history.has_rivals else ()), transaction.offsets[place]}
            elif ended is Ended.UNKNOWN:
                may_be.add(transaction.offsets[place])
        if place.topic in {topic.name for topic in history.incarnations[:-1]}:
            may_be.add(None)  # the positions in a topic are deleted with it
        position = history.group_offsets.get(place)
        if position not in may_be:
            yield (
                f"the group's position in {place.topic}-{place.partition} is {position}, "
                f"not one of {sorted(map(str, may_be))}"
            )


def _ended(transaction: SimulatedTransaction, history: History, logs: Logs) -> Ended:
    """Return how it ended. A commit of unknown outcome took place if its records are visible, since offsets are
    committed with them."""
    if transaction.ended is not Ended.UNKNOWN or len(history.incarnations) != 1:
        return transaction.ended
    group = [
        sent
        for sent in history.sent
        if sent.transaction is transaction and sent.told is Told.ACKNOWLEDGED and sent.offset is not None
    ]
    if not group:
        return Ended.UNKNOWN
    return Ended.COMMITTED if logs.visible[group[0].number] else Ended.ABORTED


def no_producer_aborts_its_successors_transaction(history: History, logs: Logs) -> Iterator[str]:
    """InitProducerId with an expected epoch follows an abort, which the coordinator rejects if the producer is
    fenced."""
    yield from history.aborted_successors


def no_reader_waits_behind_an_open_transaction(history: History, logs: Logs) -> Iterator[str]:
    """The last stable offset reaches the end of the log once the transaction time-out has passed."""
    for topic in history.incarnations[-1:]:
        for partition in topic.partitions:
            if partition.last_stable_offset != partition.log.end_offset:
                yield (
                    f"{topic.name}-{partition.index} ends at {partition.log.end_offset}, but its last stable "
                    f"offset is {partition.last_stable_offset}"
                )


Rule = Callable[[History, Logs], Iterator[str]]

RULES: list[Rule] = [
    every_acknowledged_record_is_in_the_log,
    nothing_is_there_twice,
    order_is_kept,
    no_gap_is_in_the_log,
    nothing_in_doubt_is_given_up,
    every_call_and_delivery_ends_in_time,
    nothing_times_out_early,
    nothing_fails_for_no_reason,
    no_transaction_fails_for_no_reason,
    nothing_not_persisted_is_there,
    nothing_is_there_that_was_never_sent,
    transactions_are_visible_as_told,
    the_group_is_where_the_last_commit_left_it,
    no_producer_aborts_its_successors_transaction,
    no_reader_waits_behind_an_open_transaction,
]
