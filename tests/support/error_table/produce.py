"""Scenes about Produce: a batch is rejected with a code, once to see the action, and every time to see the outcome.

Only a record that fails has an outcome, so each retry is repeated until the batch's time has run out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from aioproducer import Delivery, Outcome, Producer
from aioproducer.errors import (
    DeliveryError,
    DeliveryTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionReinitError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.protocol.messages import ProduceResponse
from aioproducer.protocol.outcomes import Action, Condition, Row
from aioproducer.records.batch import ProducerBatch
from tests.support.error_table.stage import (
    ALL,
    SETTINGS,
    Cell,
    Stage,
    altered,
    check_flags,
    error_of,
    play,
    staged,
)

PRODUCE, METADATA = ApiKey.PRODUCE, ApiKey.METADATA
BEFORE = {Condition.IN_DOUBT: 1, Condition.STALE: 2, Condition.SECOND_TIME: 1, Condition.THIRD_TIME: 2}
NAMED = 1
"""The index of the rejected record in `record_errors`."""
BASE_TIMESTAMP_AT = 27
"""The position of the base timestamp in a batch's header, after the attributes and the last offset delta."""


def versions(cell: Cell) -> list[int]:
    """The transaction versions for which this cell's rule is the first that applies; 2 without transactions."""
    if Condition.REPETITION in cell.when:
        return [1, 2]
    if Condition.TRANSACTION not in cell.when:
        return [2]
    known = {1: Condition.V1, 2: Condition.V2}
    either = cell.when - {*known.values()}
    holds = {version: {*either, condition} for version, condition in known.items()}
    return [
        version
        for version in known
        if next(rule.when for rule in cell.rules if rule.when <= holds[version]) == cell.when
    ]


def walk(cell: Cell, code: int, version: int) -> Row:
    """The row seen when a broker returns a code under the conditions of the cell."""
    if Condition.REPETITION in cell.when:
        row: Row = play(partial(_second_writer, code, version))
        return row
    return Row(play(partial(_once, cell, code, version)), play(partial(_for_ever, cell, code, version)))


def _settings(cell: Cell, version: int) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if Condition.GAPLESS in cell.when:
        settings["enable_gapless_order"] = True
    if Condition.NOT_IDEMPOTENT in cell.when:
        settings["enable_idempotence"] = False
    if Condition.TRANSACTION in cell.when:
        settings |= {"transactional_id": "tx", "version": version}
    if cell.when & {Condition.SEVERAL_RECORDS, Condition.RECORD_ERRORS}:
        settings["linger_ms"] = 50
    if Condition.NOT_FIRST in cell.when:
        settings |= {"batch_size": 1, "brokers": 2}
    return settings


def _scene(cell: Cell, code: int) -> ExitStack:
    """Changes to the broker that last for the whole scene."""
    scene = ExitStack()

    def name_a_record(answer: Any) -> None:
        for topic in answer.responses:
            for partition in topic.partition_responses:
                if partition.error_code == code:
                    partition.record_errors = [ProduceResponse.BatchIndexAndErrorMessage(batch_index=NAMED)]

    if Condition.RECORD_ERRORS in cell.when:
        scene.enter_context(altered(PRODUCE, name_a_record))
    return scene


async def _begin(on: Stage, cell: Cell) -> None:
    if Condition.TRANSACTION in cell.when:
        await on.producer.begin_transaction()
        await on.producer.partitions_for("t")
    else:
        # Several batches may be in flight only after a first one was acknowledged.
        await on.producer.send_and_wait("t", b"first", partition=0)
    await asyncio.sleep(3)  # so that metadata may be refreshed again


def _refuse(on: Stage, cell: Cell, code: int, count: int) -> None:
    """Script the answers for the batch, from the first to the last."""
    if Condition.DAMAGED in cell.when:
        damage_the_next_batch()  # the broker detects the damage itself
        return
    if Condition.STALE in cell.when:
        # One partition needs a new epoch while the batch of the other waits for a retry.
        on.refuse(PRODUCE, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, partition=1)
        on.refuse(PRODUCE, Code.NOT_ENOUGH_REPLICAS, partition=0, count=2)
        on.refuse(PRODUCE, code, count=count, partition=0)
        return
    if cell.when & {Condition.SECOND_TIME, Condition.THIRD_TIME}:
        on.refuse(PRODUCE, code, count=_before(cell))
    if Condition.VERIFICATION in cell.when:
        on.cluster.transactions.refuse_verification(count=count)
        return
    if Condition.IN_DOUBT in cell.when:
        on.refuse(PRODUCE, Code.REQUEST_TIMED_OUT)
    if code != Code.NONE:
        on.refuse(PRODUCE, code, count=count)


def _before(cell: Cell) -> int:
    """How many times the batch is sent before the attempt that the cell describes."""
    return sum(BEFORE.get(condition, 0) for condition in cell.when)


def damage_the_next_batch() -> None:
    """Change a bit of the next batch's header after its checksum is computed."""
    seal = ProducerBatch.seal

    def seal_and_damage(batch: ProducerBatch) -> tuple[bytes | memoryview, ...]:
        ProducerBatch.seal = seal  # type: ignore[method-assign]
        header, payload = seal(batch)
        damaged = bytearray(header)
        damaged[BASE_TIMESTAMP_AT] ^= 1
        batch.segments = (bytes(damaged), payload)
        return batch.segments

    ProducerBatch.seal = seal_and_damage  # type: ignore[method-assign]


async def _send(on: Stage, cell: Cell) -> list[Delivery]:
    """Send one batch, or two to the same partition."""
    several = cell.when & {Condition.SEVERAL_RECORDS, Condition.RECORD_ERRORS, Condition.NOT_FIRST}
    count = 1 if not several else 2 if Condition.NOT_FIRST in cell.when else 4
    if Condition.STALE in cell.when:
        await on.producer.send("t", b"of the other", partition=1)
    return [await on.producer.send("t", b"%d" % number, partition=0) for number in range(count)]


async def _results(deliveries: Sequence[Delivery]) -> list[BaseException | None]:
    await asyncio.wait(deliveries)
    return [delivery.exception() for delivery in deliveries]


# ------------------------------------------------------------------------------------------------- actions


async def _once(cell: Cell, code: int, version: int) -> Action:
    with _scene(cell, code):
        async with staged(**_settings(cell, version)) as on:
            await _begin(on, cell)
            before = len(on.requests(PRODUCE))
            if Condition.NOT_FIRST in cell.when:
                # The first batch is sent to the new leader at once, so that the second one waits for nothing else.
                on.faults.add(PRODUCE, error=Code.NOT_LEADER_OR_FOLLOWER, move_leader_to=1)
            _refuse(on, cell, code, 1)
            deliveries = await _send(on, cell)
            errors = await _results(deliveries)
            action = _seen(on, cell, deliveries, before)
            if cell.what is not None and not cell.when & {Condition.NOT_FIRST, Condition.VERIFICATION}:
                again = cell.when & {Condition.SECOND_TIME, Condition.THIRD_TIME}
                expected = _before(cell) + 1 if again else code not in (0, 46)
                assert on.producer.metrics().errors.get(Code(code).name, 0) == expected
            await _goes_on(on, cell, action, code, [error for error in errors if error is not None])
            return action


def _seen(on: Stage, cell: Cell, deliveries: Sequence[Delivery], before: int) -> Action:
    errors = [error for delivery in deliveries if (error := delivery.exception()) is not None]
    tries = on.requests(PRODUCE)[before:]
    number = 1 if Condition.NOT_FIRST in cell.when else _before(cell)
    again = tries[number + 1 :]
    if errors and len(errors) == len(deliveries):
        assert not again, "a record that has failed was sent again"
        return _failure(errors[0])
    if errors:
        assert [delivery.exception() is not None for delivery in deliveries] == [
            index == NAMED for index in range(len(deliveries))
        ]
        assert _failure(errors[0]) is Action.FAIL
        return Action.RESEND_INNOCENT
    if not again:
        return Action.DUPLICATE if deliveries[0].result().offset is None else Action.SUCCEED
    assert all(delivery.result().offset is not None for delivery in deliveries)
    headers = [batch.header for batch in on.cluster.batches("t", 0)][-len(again) :]
    if headers[-1].producer_id != on.cluster.batches("t", 0)[0].header.producer_id:
        return Action.NEW_PRODUCER_ID
    if headers[-1].producer_epoch > 0:
        return Action.RENUMBER
    first = 0 if Condition.TRANSACTION in cell.when else 1
    assert headers[0].base_sequence == first, "the sequence numbers have changed"
    if [header.record_count for header in headers] == [2, 2]:
        return Action.SPLIT
    if Condition.NOT_FIRST in cell.when:
        head, second = again
        return Action.HOLD if second.at - head.at < 0.01 else Action.RETRY
    refused, retry = tries[number : number + 2]
    if retry.at - refused.at < 0.1:
        return Action.RETRY_SOON
    if any(refused.at < seen.at < retry.at for seen in on.requests(ApiKey.API_VERSIONS)):
        return Action.RENEGOTIATE
    asked = [seen for seen in on.requests(METADATA) if refused.at < seen.at < retry.at]
    return Action.REFRESH if asked else Action.RETRY


def _failure(error: BaseException) -> Action:
    assert type(error) is DeliveryError, repr(error)
    if error.requires_reinit:
        check_flags(error, "requires_reinit")
        return Action.REINIT
    if error.requires_abort:
        check_flags(error, "requires_abort")
        return Action.ABORT
    check_flags(error)
    return Action.DAMAGED if "damaged in this process's memory" in str(error) else Action.FAIL


async def _goes_on(on: Stage, cell: Cell, action: Action, code: int, errors: Sequence[BaseException]) -> None:
    """Do what the flags of the errors ask for. Check that the producer then works: none of these errors is fatal."""
    for error in errors:
        assert isinstance(error, DeliveryError)
        assert (error.topic, error.partition, error.broker) == ("t", 0, 0)
        assert error.attempts == _before(cell) + 1
        assert getattr(error.last_error, "code", None) == code
    producer = on.producer
    if Condition.TRANSACTION not in cell.when:
        assert (await producer.send_and_wait("t", b"last", partition=0)).offset is not None
        return
    ended = await error_of(producer.commit_transaction())
    if action is Action.ABORT:
        assert isinstance(ended, TransactionAbortableError)
        await producer.abort_transaction()
    elif action is Action.REINIT:
        fenced = code in (Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED)
        assert type(ended) is (ProducerFencedError if fenced else TransactionReinitError)
        await producer.init_transactions()
    else:
        assert ended is None
    await producer.begin_transaction()
    await producer.send("t", b"last", partition=0)
    await producer.commit_transaction()
    committed = [record.value for record in on.cluster.records("t", 0, committed=True)]
    assert committed == ([b"0", b"last"] if ended is None else [b"last"])


async def _second_writer(code: int, version: int) -> Row:
    """Two participants of a transaction write to one partition: to the broker, the second seems to repeat the first."""
    async with staged(version=version, transactional_id="tx") as on:
        await on.producer.begin_transaction()
        handle = await on.producer.export_transaction([("t", 0)])
        settings = {**SETTINGS, "bootstrap_servers": on.cluster.bootstrap_servers}
        async with Producer.attach(handle, partitions=[("t", 0)], **settings) as first:
            await first.send_and_wait("t", b"first", partition=0)
        async with Producer.attach(handle, partitions=[("t", 0)], **settings) as second:
            if code != Code.NONE:
                on.refuse(PRODUCE, code)
            delivery = await second.send("t", b"second", partition=0)
            (error,) = await _results([delivery])
            assert isinstance(error, DeliveryError)
            assert isinstance(
                await error_of(second.send("t", b"third", partition=0)), TransactionAbortableError
            )
        assert len(on.requests(PRODUCE)) == 2, "the batch was sent again"
        await on.producer.abort_transaction()
        return Row(_failure(error), error.outcome)


# ------------------------------------------------------------------------------------------------ outcomes


async def _for_ever(cell: Cell, code: int, version: int) -> Outcome:
    """The outcome of the records if the broker always returns the code."""
    with _scene(cell, code):
        async with staged(**_settings(cell, version)) as on:
            await _begin(on, cell)
            if Condition.NOT_FIRST in cell.when:
                return await _not_first_for_ever(on, code)
            _refuse(on, cell, code, ALL)
            outcomes = {_outcome(error) for error in await _results(await _send(on, cell))}
            assert len(outcomes) == 1
            return outcomes.pop()


async def _not_first_for_ever(on: Stage, code: int) -> Outcome:
    """The outcome of a batch after one that is retried until both fail at the same time."""
    on.refuse(PRODUCE, Code.NOT_ENOUGH_REPLICAS)
    on.refuse(PRODUCE, code)
    on.refuse(PRODUCE, Code.NOT_ENOUGH_REPLICAS, count=ALL)
    deliveries = [await on.producer.send("t", b"%d" % number, partition=0) for number in range(2)]
    _, error = await _results(deliveries)
    assert isinstance(error, DeliveryError)
    assert error.attempts == 1
    return _outcome(error)


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return Outcome.NOT_PERSISTED  # after a success there is no outcome to compare
    assert isinstance(error, DeliveryError)
    if isinstance(error, DeliveryTimeoutError):
        check_flags(error, "retriable", *(["requires_abort"] if error.requires_abort else []))
    return error.outcome
