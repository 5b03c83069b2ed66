"""One Kafka transaction for a whole write: the driver begins and ends it, and the tasks write to it.

    plan     driver   takes a new epoch, which aborts an earlier attempt's open transaction; reads the marker
    write    tasks    write as participants, each to its own partitions; write nothing if the marker says "done"
    commit   driver   commits the marker as a consumer group's offset in the same transaction, then sends EndTxn

The marker is the number of the last committed write. The marker and the rows are committed together or not at all, so
after a crash the marker shows whether a write must be repeated. The broker can't distinguish a task's attempts,
so a second attempt never writes: the whole write is planned again, under another epoch."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from aioproducer import (
    BrokerError,
    CommitOutcomeUnknownError,
    DeliveryError,
    KafkaError,
    OffsetAndMetadata,
    ProducerFencedError,
    SendManyError,
    TopicPartition,
    TransactionAbortableError,
)
from aioproducer.blocking import Producer
from aioproducer.spark.options import SinkError, SinkOptions, in_options
from aioproducer.spark.reports import Plan, TaskReport, Version
from aioproducer.spark.task import TaskWriter

logger = logging.getLogger(__name__)

HELPER = "aioproducer.spark.partition_by_key(df, partitions)"
APPEND_TIME = "logAppendTime=true"
NUMBERS_OF_ANOTHER = ("NONE", "OUT_OF_ORDER_SEQUENCE_NUMBER")
"""The results that a broker returns to the second writer of a partition; NONE means success."""
AGAIN = (
    "No part of the batch was committed, and the whole batch can be written again: restart the query, as "
    "aioproducer.spark.run_query does, or use aioproducer.spark.foreach_batch, which repeats failed batches"
)
"""The advice for a failure that another attempt at the whole batch can fix. `run_query` looks for it in error texts."""
SPECULATION = (
    "spark.speculation is on, and a speculative copy of a task would write its rows a second time. Set "
    "spark.speculation=false when the session is created, or use delivery=at_least_once"
)
CLOSING = 10.0
"""Timeout in seconds for closing a producer after its transaction has ended."""


class OtherWriterError(SinkError):
    """A task found another writer's rows in some of its partitions (`rivals`). `answer` is the original error text."""

    rivals: frozenset[TopicPartition]
    answer: str


def _group(options: SinkOptions) -> str:
    return f"aioproducer.{options.transactional_id}"


def _marker_places(options: SinkOptions) -> list[TopicPartition]:
    """Return the partitions whose group offsets hold the marker: the first partition of each topic.

    A marker in only one of the topics would be lost when that topic is removed from the list."""
    return [TopicPartition(topic, 0) for topic in options.topics]


# ---------------------------------------------------------------------------------------------------------- driver


def plan(options: SinkOptions) -> Plan:
    """Take over the transactional id, read the marker, and begin a transaction.

    Raises:
        SinkError: the cluster returned an error, or did not answer.
    """
    try:
        with _closed_soon(options.producer(transactional_id=options.transactional_id)) as producer:
            partitions = tuple((topic, options.partitions_of(producer, topic)) for topic in options.topics)
            marker, writes = _read_marker(producer, options)
            begun_at = time.time()
            producer.begin_transaction()
            producer.export_transaction(_places(partitions))
            handle = producer.release_transaction()
            seconds = producer.config.transaction_timeout
    except KafkaError as error:
        raise SinkError(
            f"exactly_once: can't begin a transaction for {options.transactional_id!r}: {in_options(str(error))}"
        ) from error
    return Plan(handle, partitions, marker, begun_at, seconds, writes)


def _places(partitions: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, count in partitions for number in range(count)]


def commit(
    options: SinkOptions, plan: Plan | None, version: Version | None, reports: Sequence[TaskReport]
) -> bool:
    """Commit the transaction if every task has written all its rows, and only to its own partitions.

    Args:
        plan: the plan of this write; None if only the tasks know it (a stream).
        version: the identity of the write, or None; without it, a repeated write is not recognized.
        reports: the reports of all tasks.

    Returns:
        False if the write was already committed, in which case the tasks skipped it.

    Raises:
        SinkError: the write was not committed, or Kafka did not answer. In the latter case, only the next plan can
            find out whether the write was committed.
    """
    for report in reports:
        if report.failure:
            raise SinkError(_cause(report, reports, options))
    plans = {report.plan for report in reports if report.plan is not None}
    plan = plan or next(iter(plans), None)
    if plan is None:
        return True  # a stream's batch without tasks: nothing was planned, so there is no transaction to end
    if plans - {plan} or any(report.version != version for report in reports):
        raise SinkError(
            "exactly_once: a commit received reports from tasks of different attempts; the batch must be rerun"
        )
    skipped = [report.is_skipped for report in reports]
    if any(skipped) or (version is not None and _is_done(plan, version)):
        if not all(skipped):
            raise SinkError(
                "exactly_once: some tasks skipped a batch that others wrote; the batch must be rerun"
            )
        return False
    _check_disjoint(reports)
    _check_age(plan)
    try:
        with _closed_soon(Producer.resume(plan.handle, config=options.kafka)) as producer:
            if version is not None:
                marker = _marker_of(options, plan, version, reports)
                producer.send_offsets_to_transaction(marker, _group(options))
            elif not any(report.written for report in reports):
                return True  # close() aborts it; with transactions v2 an empty transaction can't be committed
            _end(producer, options, version)
    except KafkaError as error:
        raise SinkError(
            f"exactly_once: {options.transactional_id!r} was not committed: {in_options(str(error))}"
            f"{_whose_epoch(error)}"
        ) from error
    return True


def _cause(failed: TaskReport, reports: Sequence[TaskReport], options: SinkOptions) -> str:
    """Return the text of a task's failure. If the task found another writer, say which one."""
    if not failed.rivals:
        return failed.failure
    _check_disjoint(reports)  # raises if the other writer is another task of this attempt
    place = min(failed.rivals)
    return (
        f"exactly_once: task {failed.task} found another writer's rows in {place.topic}-{place.partition}, and no "
        "other task of the batch reports rows there: an executor was lost and Spark reran its tasks, or the response "
        f"to the task's first record batch was lost{_or_the_topic(options)}. {AGAIN}. Kafka's answer: {failed.failure}"
    )


def _or_the_topic(options: SinkOptions) -> str:
    return (
        ""
        if options.log_append_time
        else f", or the topic has LogAppendTime, which requires the option {APPEND_TIME}"
    )


def _whose_epoch(error: KafkaError) -> str:
    """Return advice for a user whose transaction was fenced; an empty string for other errors."""
    if not isinstance(error, ProducerFencedError) and "INVALID_PRODUCER_EPOCH" not in str(error):
        return ""
    return (
        " (either the batch took longer than kafka.transaction.timeout.ms, or another driver has taken over this "
        "transactionalId; each query needs its own)"
    )


def _end(producer: Producer, options: SinkOptions, version: Version | None) -> None:
    try:
        producer.commit_transaction()
    except CommitOutcomeUnknownError:
        # Do not abort: the commit may still be in progress. init_transactions() waits until the commit has ended; then
        # the marker shows whether it succeeded.
        producer.init_transactions()
        if version is None or _read_marker(producer, options)[0] != version:
            raise
        logger.warning(
            "exactly_once: the broker did not respond to the commit of %s, but committed it", version
        )


def abort(options: SinkOptions, plan: Plan | None, reports: Sequence[TaskReport | None]) -> None:
    """Abort the transaction, and fence the tasks that still write to it.

    Errors are only logged, since the next plan or the brokers' timeout also ends the transaction. If no task of a
    stream's batch has reported, this function does not know the plan, and only the next plan or the timeout ends the
    transaction."""
    known = [report for report in reports if report is not None]
    plan = plan or next((report.plan for report in known if report.plan is not None), None)
    if plan is None or any(report.is_skipped for report in known):
        return
    try:
        with _closed_soon(Producer.resume(plan.handle, config=options.kafka)) as producer:
            if plan.handle.is_v2 and len(known) < len(reports):
                producer.abort_transaction()
            else:
                # In v1, an abort does not fence tasks that are still running. If all tasks have reported, a commit was
                # attempted and may still be in progress; fence_transaction() waits until it has ended.
                producer.fence_transaction()
    except Exception as error:
        logger.warning(
            "exactly_once: %r could not be aborted now; the next attempt will abort it: %s",
            options.transactional_id,
            error,
        )


def _read_marker(producer: Producer, options: SinkOptions) -> tuple[Version | None, int]:
    """Return the last committed write, or None, and the number of writes up to it.

    A topic that was added to the list has no marker yet. A topic that was missing from the list for a while has an
    outdated one."""
    markers: list[tuple[int, Version | None]] = [(0, None)]
    for found in producer.committed(_group(options), _marker_places(options)).values():
        if found is None:
            continue
        try:
            metadata = json.loads(found.metadata)
            owner = str(metadata["owner"])
            markers.append((int(metadata.get("writes", 1)), Version(owner, found.offset)))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SinkError(
                f"the consumer group {_group(options)!r} contains an offset that this sink did not write; use "
                "a transactionalId that nothing else uses"
            ) from None
    writes, version = max(markers, key=itemgetter(0))
    return version, writes


def _marker_of(
    options: SinkOptions, plan: Plan, version: Version, reports: Sequence[TaskReport]
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    rows = sum(report.rows for report in reports)
    metadata = json.dumps({"owner": version.owner, "rows": rows, "writes": plan.writes + 1})
    return dict.fromkeys(_marker_places(options), OffsetAndMetadata(version.number, metadata))


def _check_disjoint(reports: Sequence[TaskReport]) -> None:
    """Check that no two tasks wrote to the same partition: the broker can drop the rows of one task and report
    success."""
    owners: dict[TopicPartition, int] = {}
    for report in reports:
        for place in sorted(report.written.keys() | report.rivals):
            if place in owners:
                raise SinkError(
                    f"exactly_once: tasks {owners[place]} and {report.task} have both written to {place.topic}-"
                    f"{place.partition}; all rows of a partition must be in one task; use {HELPER}"
                )
            owners[place] = report.task


def _check_age(plan: Plan) -> None:
    age = time.time() - plan.begun_at
    if age > plan.seconds:
        raise SinkError(
            f"exactly_once: the batch took {age:.0f} s, longer than the transaction timeout "
            f"({plan.seconds:.0f} s); use smaller batches (maxOffsetsPerTrigger, maxFilesPerTrigger), or raise "
            "kafka.transaction.timeout.ms and the brokers' transaction.max.timeout.ms"
        )


@contextlib.contextmanager
def _closed_soon(producer: Producer) -> Iterator[Producer]:
    """Start a producer, and close it at the end of the block. Closing aborts a transaction that is still open."""
    producer.start()
    try:
        yield producer
    finally:
        producer.close(timeout=CLOSING)


# ------------------------------------------------------------------------------------------------------------ tasks


def _is_done(plan: Plan, version: Version) -> bool:
    return (
        plan.marker is not None
        and plan.marker.owner == version.owner
        and plan.marker.number >= version.number
    )


def check_owner(options: SinkOptions, plan: Plan, version: Version | None) -> None:
    """Check that the transactional id does not belong to another query, or to an earlier checkpoint of this one.

    Raises:
        SinkError: the last committed write belongs to another query.
    """
    if options.accepts_reset or plan.marker is None or version is None:
        return
    if plan.marker.owner != version.owner:
        raise SinkError(
            f"exactly_once: the transactionalId {options.transactional_id!r} belongs to the query "
            f"{plan.marker.owner}, but this is the query {version.owner}: a new checkpoint (or txnAppId) starts from "
            "the beginning and would write the same rows again. Use another transactionalId, or, if that is intended, "
            "set onCheckpointReset=accept"
        )


def write_exactly_once(
    batches: Iterable[pa.RecordBatch],
    options: SinkOptions,
    plan: Plan,
    version: Version | None,
    *,
    task: int,
    attempt: int,
    speculation: bool,
) -> TaskReport:
    """Write a task's rows as a participant in the transaction. Close the producer's sockets before returning.

    Raises:
        SinkError: a row was not written, or this is not the first attempt. The whole write must be planned again.
    """
    check_owner(options, plan, version)
    if version is not None and _is_done(plan, version):
        return TaskReport(task, 0, 0, 0.0, 0, 0.0, {}, plan, version, is_skipped=True)
    if attempt > 0 or speculation:
        raise SinkError(_why_not(task, attempt))
    producer = Producer.attach(
        plan.handle,
        partitions=_places(plan.partitions),
        log_append_time=options.log_append_time,
        config=options.kafka,
    )
    try:
        with producer:
            writer = TaskWriter(producer, options, task)
            first_row = 0
            for number, batch in enumerate(batches):
                if batch.num_rows:
                    _check_topics(batch, options, plan, task, first_row)
                    writer.write(_with_partitions(batch, options, plan, task, number))
                    first_row += batch.num_rows
            report = writer.finish()
    except SinkError as error:
        if rivals := _rivals(error):
            raise OtherWriterError(
                f"exactly_once: task {task} wrote to a partition that already had another writer (or the response to "
                f"the task's first batch was lost{_or_the_topic(options)}); all rows of a partition must be in one "
                f"task; use {HELPER}. {error}",
                rivals=rivals,
                answer=str(error),
            ) from error
        raise
    return dataclasses.replace(report, plan=plan, version=version)


def _why_not(task: int, attempt: int) -> str:
    """Return the reason why a task does not write."""
    if attempt == 0:
        return f"exactly_once: task {task} did not write any rows, because {SPECULATION}"
    return (
        f"exactly_once: task {task} did not write any rows, because this is attempt {attempt}: an earlier attempt "
        "failed, or its executor was lost, and Kafka can't distinguish a task's attempts. Spark's log names the "
        f"executor and the reason (Lost task {task}.{attempt - 1}). {AGAIN}"
    )


def _rivals(error: SinkError) -> frozenset[TopicPartition]:
    """Return the partitions that have another writer.

    For topics with LogAppendTime, the leaders named these partitions before the first record was sent. For other
    topics, the leaders found a repeated sequence number or a gap."""
    cause = error.__cause__
    if isinstance(cause, TransactionAbortableError):
        return cause.partitions
    found: set[TopicPartition] = set()
    for row in cause.errors.values() if isinstance(cause, SendManyError) else ():
        if not isinstance(row, DeliveryError):
            continue
        last = row.last_error
        if isinstance(last, TransactionAbortableError):
            found |= last.partitions
        elif isinstance(last, BrokerError) and last.name in NUMBERS_OF_ANOTHER:
            found.add(TopicPartition(row.topic, row.partition))
    return frozenset(found)


def _check_topics(batch: pa.RecordBatch, options: SinkOptions, plan: Plan, task: int, first_row: int) -> None:
    """Check that the `topic` column, if it is used, contains only topics whose partitions are in the transaction.

    Raises:
        SinkError: a row has no topic, or a topic that is not in the transaction.
    """
    if options.topic is not None:
        return
    listed = pa.array([topic for topic, _ in plan.partitions])
    wrong = pc.invert(pc.is_in(batch.column("topic").cast(pa.string()), value_set=listed))
    if (row := pc.index(wrong, True).as_py()) >= 0:
        raise SinkError(
            f"exactly_once: row {first_row + row} of task {task} is for topic {batch.column('topic')[row].as_py()!r}, "
            f"but the 'topics' option names only {', '.join(options.topics)}; add the topic there"
        )


def _with_partitions(
    batch: pa.RecordBatch, options: SinkOptions, plan: Plan, task: int, number: int
) -> pa.RecordBatch:
    """Return the rows with a `partition` column that contains only this task's partitions.

    Raises:
        SinkError: a row's partition is missing or not in the transaction, or another task might write to the same
            partition.
    """
    names = batch.schema.names
    if "partition" in names:
        column = batch.column("partition")
        if column.null_count:
            raise SinkError(f"exactly_once: a row has no partition; use {HELPER}, which sets it")
        # Without this check, the producer would wait max.block.ms for the partition to appear.
        for topic, count in plan.partitions:
            own = column if options.topic else column.filter(pc.equal(batch.column("topic"), topic))
            if len(own) and (last := pc.max(own).as_py()) >= count:
                counts = dict(plan.partitions) if options.topic is None else count
                raise SinkError(
                    f"exactly_once: a row is for partition {last}, but the last partition of topic {topic} is "
                    f"{count - 1}; use aioproducer.spark.partition_by_key(df, {counts})"
                )
        return batch
    if task > 0:
        raise SinkError(
            "exactly_once requires a `partition` column, with all rows of a partition in one task, or a single task "
            f"(coalesce(1)); {HELPER} adds the column and repartitions the rows"
        )
    # Each batch gets the column, even if all its rows have keys: several batches are sent as one table.
    anywhere = number % min(count for _, count in plan.partitions)
    column = pa.repeat(pa.scalar(anywhere, pa.int32()), batch.num_rows)
    if "key" in names:
        column = pc.if_else(pc.is_valid(batch.column("key")), None, column)  # null: the key decides
    return batch.append_column("partition", column)
