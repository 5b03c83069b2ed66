"""One Kafka transaction for a whole write: planned and ended on the driver, written to by the tasks.

    plan     driver   a new epoch, which ends what an earlier attempt left open; the marker of what is committed
    write    tasks    as participants, each to partitions of its own; or nothing, if the marker says "done"
    commit   driver   the marker as a consumer group's offset in the same transaction, then EndTxn

The marker decides after every crash: it and the rows are committed together or not at all. The broker can't tell the
attempts of a task apart, so a second one never writes: the whole write is planned again, under another epoch."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
)
from aioproducer.blocking import Producer
from aioproducer.spark.options import SinkError, SinkOptions
from aioproducer.spark.reports import Plan, TaskReport, Version
from aioproducer.spark.task import TaskWriter

logger = logging.getLogger(__name__)

HELPER = "aioproducer.spark.partition_by_key(df, partitions)"
APPEND_TIME = "option logAppendTime=true"
NUMBERS_OF_ANOTHER = ("NONE", "OUT_OF_ORDER_SEQUENCE_NUMBER")
"""What brokers answer to the second writer of a partition; the first of them is success."""
CLOSING = 10.0
"""Seconds that a producer has to close when everything is decided."""


def _group(options: SinkOptions) -> str:
    return f"aioproducer.{options.transactional_id}"


def _marker_place(options: SinkOptions) -> TopicPartition:
    assert options.topic is not None  # exactly_once is refused without it
    return TopicPartition(options.topic, 0)


# ---------------------------------------------------------------------------------------------------------- driver


def plan(options: SinkOptions) -> Plan:
    """Take the transactional id over, see what is committed, and begin.

    Raises:
        SinkError: the cluster refused, or did not answer.
    """
    assert options.topic is not None
    try:
        with _closed_soon(options.producer(transactional_id=options.transactional_id)) as producer:
            partitions = sorted(producer.partitions_for(options.topic))
            marker = _read_marker(producer, options)
            begun_at = time.time()
            producer.begin_transaction()
            producer.export_transaction([(options.topic, partition) for partition in partitions])
            handle = producer.release_transaction()
            seconds = producer.config.transaction_timeout
    except KafkaError as error:
        raise SinkError(
            f"exactly_once: the transaction {options.transactional_id!r} can't begin: {error}"
        ) from error
    return Plan(handle, len(partitions), marker, begun_at, seconds)


def commit(
    options: SinkOptions, plan: Plan | None, version: Version | None, reports: Sequence[TaskReport]
) -> bool:
    """Commit what the tasks have written, if every one of them is whole and wrote to partitions of its own.

    Args:
        plan: of this write; None if only the tasks know it (a stream).
        version: which write it is; None if it is not to be known again.
        reports: of all tasks.

    Returns:
        False if it was committed before and the tasks have skipped it.

    Raises:
        SinkError: it is not committed; or, if Kafka did not answer, nobody knows before the next plan.
    """
    for report in reports:
        if report.failure:
            raise SinkError(report.failure)
    plans = {report.plan for report in reports if report.plan is not None}
    plan = plan or next(iter(plans), None)
    if plan is None:
        return True  # a stream's batch without a single task: nothing was planned, nothing is to be ended
    if plans - {plan} or any(report.version != version for report in reports):
        raise SinkError(
            "exactly_once: tasks of different attempts report to one commit; the batch must be run again"
        )
    skipped = [report.is_skipped for report in reports]
    if any(skipped) or (version is not None and _is_done(plan, version)):
        if not all(skipped):
            raise SinkError("exactly_once: some tasks have skipped a batch that others have written")
        return False
    _check_disjoint(reports)
    _check_age(plan)
    try:
        with _closed_soon(Producer.resume(plan.handle, config=options.kafka)) as producer:
            if version is not None:
                producer.send_offsets_to_transaction(_marker_of(options, version, reports), _group(options))
            elif not any(report.written for report in reports):
                return True  # closing aborts it; with transactions v2 an empty one can't be committed
            _end(producer, options, version)
    except KafkaError as error:
        raise SinkError(
            f"exactly_once: {options.transactional_id!r} was not committed: {error}{_whose_epoch(error)}"
        ) from error
    return True


def _whose_epoch(error: KafkaError) -> str:
    """What a user of Spark can do about an epoch that is over."""
    if not isinstance(error, ProducerFencedError) and "INVALID_PRODUCER_EPOCH" not in str(error):
        return ""
    return (
        " (another driver has taken this transactionalId over: each query needs one of its own; or the batch took "
        "longer than kafka.transaction.timeout.ms)"
    )


def _end(producer: Producer, options: SinkOptions, version: Version | None) -> None:
    try:
        producer.commit_transaction()
    except CommitOutcomeUnknownError:
        # Never the opposite: it may be under way. A new epoch waits until it is decided; then the marker tells.
        producer.init_transactions()
        if version is None or _read_marker(producer, options) != version:
            raise
        logger.warning("exactly_once: the commit of %s was not answered, and is in the log", version)


def abort(options: SinkOptions, plan: Plan | None, reports: Sequence[TaskReport | None]) -> None:
    """Shut out whoever still writes. Never raises: the next plan, or the brokers' time-out, would do it as well; and
    does it where no task has reported, since then nothing is known here of a stream's batch."""
    known = [report for report in reports if report is not None]
    plan = plan or next((report.plan for report in known if report.plan is not None), None)
    if plan is None or any(report.is_skipped for report in known):
        return
    try:
        with _closed_soon(Producer.resume(plan.handle, config=options.kafka)) as producer:
            if plan.handle.is_v2 and len(known) < len(reports):
                producer.abort_transaction()
            else:
                # v1 leaves the epoch to the tasks that still run. And if all tasks have reported, a commit was tried:
                # after that an abort may meet it, and a new epoch waits for what becomes of it.
                producer.fence_transaction()
    except Exception as error:
        logger.warning(
            "exactly_once: %r was not aborted; the next attempt does it: %s", options.transactional_id, error
        )


def _read_marker(producer: Producer, options: SinkOptions) -> Version | None:
    place = _marker_place(options)
    found = producer.committed(_group(options), [place])[place]
    if found is None:
        return None
    try:
        return Version(str(json.loads(found.metadata)["owner"]), found.offset)
    except (ValueError, TypeError, KeyError):
        raise SinkError(
            f"the consumer group {_group(options)!r} contains an offset that this sink did not write; use "
            "a transactionalId that nothing else uses"
        ) from None


def _marker_of(
    options: SinkOptions, version: Version, reports: Sequence[TaskReport]
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    rows = sum(report.rows for report in reports)
    metadata = json.dumps({"owner": version.owner, "rows": rows})
    return {_marker_place(options): OffsetAndMetadata(version.number, metadata)}


def _check_disjoint(reports: Sequence[TaskReport]) -> None:
    """The broker answers success to a second writer of a partition, and throws its rows away."""
    owners: dict[TopicPartition, int] = {}
    for report in reports:
        for place in report.written:
            if place in owners:
                raise SinkError(
                    f"exactly_once: tasks {owners[place]} and {report.task} have both written to {place.topic}-"
                    f"{place.partition}; rows of one partition must be in one task: {HELPER}"
                )
            owners[place] = report.task


def _check_age(plan: Plan) -> None:
    age = time.time() - plan.begun_at
    if age > plan.seconds:
        raise SinkError(
            f"exactly_once: the batch took {age:.0f} s, longer than the brokers let a transaction live "
            f"({plan.seconds:.0f} s); give it less rows (maxOffsetsPerTrigger, maxFilesPerTrigger), or raise "
            "kafka.transaction.timeout.ms and the brokers' transaction.max.timeout.ms"
        )


@contextlib.contextmanager
def _closed_soon(producer: Producer) -> Iterator[Producer]:
    """Started, and closed however the block is left; an open transaction of its own is aborted by that."""
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
    """Refuse a query that begins again under the transactional id of another one.

    Raises:
        SinkError: the checkpoint is a new one.
    """
    if options.accepts_reset or plan.marker is None or version is None:
        return
    if plan.marker.owner != version.owner:
        raise SinkError(
            f"exactly_once: the transactionalId {options.transactional_id!r} belongs to the query "
            f"{plan.marker.owner}, and this is {version.owner}: a new checkpoint (or txnAppId) begins at the beginning "
            "and would write again what is written. Use another transactionalId, or, if that is wanted, "
            "onCheckpointReset=accept"
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
    """Write a task's rows as a participant of the transaction. Its sockets are closed when this returns.

    Raises:
        SinkError: a row was not written, or it is not the task's first attempt; the whole write must be planned again.
    """
    check_owner(options, plan, version)
    if version is not None and _is_done(plan, version):
        return TaskReport(task, 0, 0, 0.0, 0, 0.0, {}, plan, version, is_skipped=True)
    if attempt > 0 or speculation:
        why = (
            f"this is attempt {attempt} (Spark's log says what the first one died of: Lost task {task}.0)"
            if attempt > 0
            else "spark.speculation is on"
        )
        raise SinkError(
            f"exactly_once: task {task} does not write, since {why}: Kafka can't tell the attempts of a task apart. "
            "The batch must be run again as a whole; restart the query, or let aioproducer.spark.foreach_batch do that"
        )
    producer = Producer.attach(
        plan.handle,
        partitions=[(options.topic or "", partition) for partition in range(plan.partitions)],
        log_append_time=options.log_append_time,
        config=options.kafka,
    )
    try:
        with producer:
            writer = TaskWriter(producer, options, task)
            for number, batch in enumerate(batches):
                if batch.num_rows:
                    writer.write(_with_partitions(batch, options, plan, task, number))
            report = writer.finish()
    except SinkError as error:
        if _is_of_two_writers(error):
            or_the_topic = (
                "" if options.log_append_time else f", or the topic has LogAppendTime: {APPEND_TIME}"
            )
            raise SinkError(
                f"exactly_once: task {task} has met another writer in a partition (or the answer to its first batch "
                f"was lost{or_the_topic}); rows of one partition must be in one task: {HELPER}. {error}"
            ) from error
        raise
    return dataclasses.replace(report, plan=plan, version=version)


def _is_of_two_writers(error: SinkError) -> bool:
    """Whether a broker has had sequence numbers from somebody else: it took them for a repetition, or for a gap."""
    if not isinstance(error.__cause__, SendManyError):
        return False
    lasts = (row.last_error for row in error.__cause__.errors.values() if isinstance(row, DeliveryError))
    return any(isinstance(last, BrokerError) and last.name in NUMBERS_OF_ANOTHER for last in lasts)


def _with_partitions(
    batch: pa.RecordBatch, options: SinkOptions, plan: Plan, task: int, number: int
) -> pa.RecordBatch:
    """The rows with a partition each, where this task is the only one that may write there.

    Raises:
        SinkError: another task might; or the transaction knows no such partition.
    """
    names = batch.schema.names
    if "partition" in names:
        column = batch.column("partition")
        if column.null_count:
            raise SinkError(f"exactly_once: a row has no partition; {HELPER} gives each row one")
        # Else the producer would wait for the partition to come, max.block.ms long.
        if (last := pc.max(column).as_py()) >= plan.partitions:
            raise SinkError(
                f"exactly_once: a row is for partition {last}, and topic {options.topic} has {plan.partitions} "
                f"(0 to {plan.partitions - 1}): aioproducer.spark.partition_by_key(df, {plan.partitions})"
            )
        return batch
    if task > 0:
        raise SinkError(
            "exactly_once needs a column `partition`, with all rows of a partition in one task, or a single task "
            f"(coalesce(1)): {HELPER} makes both"
        )
    # Each batch gets the column, also if it has all keys: batches go into the buffer together, as one table.
    anywhere = pa.repeat(pa.scalar(number % plan.partitions, pa.int32()), batch.num_rows)
    if "key" in names:
        anywhere = pc.if_else(pc.is_valid(batch.column("key")), None, anywhere)  # a key's is murmur2's
    return batch.append_column("partition", anywhere)
