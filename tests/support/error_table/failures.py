"""Scenes about requests that end without an error code: Produce with and without acknowledgements, EndTxn, and
InitProducerId."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from typing import Any

from aioproducer import Delivery, Outcome
from aioproducer.errors import (
    CommitOutcomeUnknownError,
    DeliveryError,
    TransactionAbortableError,
    TransactionReinitError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.messages import ApiVersionsResponse, MetadataResponse, ProduceResponse
from aioproducer.protocol.outcomes import Action, Condition, Failure, Row
from aioproducer.protocol.schema import Message
from tests.support.error_table.stage import Cell, Stage, altered, check_flags, error_of, play, staged, until
from tests.support.producing import partitions_of

PRODUCE, METADATA, END, INIT = ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID
FIND = ApiKey.FIND_COORDINATOR

SCRIPTED: dict[Failure, dict[str, Any]] = {
    Failure.CUT: {"drop_before": True},
    Failure.TIMED_OUT: {"delay": 3.0},
    Failure.WRONG_CORRELATION_ID: {"wrong_correlation_id": True},
    Failure.MISSING_PARTITION: {"omit_partitions": True},
}
"""The scripted fault for each failure; the answers for the other failures are made below."""
OF_PRODUCE_ONLY = (Failure.MISSING_PARTITION, Failure.FOREIGN_PARTITION)
LARGE = 10_000
"""The size in bytes of a record that fills the connection to a broker."""
WINDOW = 4096


def walk(cell: Cell) -> list[Row]:
    """The rows seen when each of the requests ends with the cell's failure."""
    failure = cell.what
    assert isinstance(failure, Failure)
    if Condition.ACKS_0 in cell.when:
        return [play(partial(_unacknowledged, failure), window=WINDOW)]
    seen = []
    if failure is Failure.NOT_WRITTEN:
        for acks in ("all", 0):
            action = play(partial(_not_written, acks, heals=True), window=WINDOW)
            outcome = play(partial(_not_written, acks, heals=False), window=WINDOW)
            seen.append(Row(action, outcome))
    else:
        seen.append(Row(play(partial(_once, failure)), play(partial(_then_never, failure))))
    if failure not in OF_PRODUCE_ONLY:
        seen.append(Row(play(partial(_commit, failure)), play(partial(_commit_then_never, failure))))
        assert play(partial(_producer_id, failure)) is seen[0].action
    return seen


def _strike(on: Stage, scene: ExitStack, failure: Failure, api: ApiKey) -> None:
    """Make the next request end with this failure."""
    if failure is Failure.NO_COMMON_VERSION:
        scene.enter_context(altered(ApiKey.API_VERSIONS, partial(_without, api)))
        on.network.cut(on.port)
        return
    if failure not in (Failure.UNDECODABLE, Failure.FOREIGN_PARTITION):
        on.faults.add(api, **SCRIPTED[failure])
        return
    left = [failure]
    scene.enter_context(altered(api, lambda answer: _nonsense(left.pop(), answer) if left else None))


def _nonsense(failure: Failure, answer: Any) -> Message | None:
    if failure is Failure.UNDECODABLE:
        # A response of another type, whose bytes make no sense.
        return ProduceResponse() if isinstance(answer, MetadataResponse) else MetadataResponse(cluster_id="x")
    other = ProduceResponse.PartitionProduceResponse(index=77)
    answer.responses[0].partition_responses.append(other)
    return None


def _without(api: ApiKey, answer: Any) -> None:
    assert isinstance(answer, ApiVersionsResponse)
    answer.api_keys = [spoken for spoken in answer.api_keys if spoken.api_key != api]


# Produce, acks=all


async def _warm(on: Stage) -> None:
    for partition in (0, 1):
        await on.producer.send_and_wait("t", b"first", partition=partition)
    await asyncio.sleep(3)


async def _once(failure: Failure) -> Action:
    async with staged() as on:
        with ExitStack() as scene:
            await _warm(on)
            asked, tries = len(on.requests(METADATA)), len(on.requests(PRODUCE))
            _strike(on, scene, failure, PRODUCE)
            error = await error_of(await _send(on, failure))
            if error is not None:
                assert type(error) is DeliveryError
                check_flags(error)
                assert len(on.requests(PRODUCE)) == tries
                return Action.FAIL
            first, second = [seen for seen in on.requests(PRODUCE)[tries:] if partitions_of(seen) == [0]]
            assert second.at - first.at > 0.5
            assert len(on.requests(METADATA)) > asked
            values = [record.value for record in on.cluster.records("t", 0)]
            assert values == [b"first", b"1"]
            return Action.REFRESH


async def _send(on: Stage, failure: Failure) -> Delivery:
    if failure is Failure.FOREIGN_PARTITION:
        # The request itself is also answered; later requests on the connection are lost.
        assert await on.producer.send("t", b"before", partition=1)
        await asyncio.sleep(0)
    return await on.producer.send("t", b"1", partition=0)


async def _then_never(failure: Failure) -> Outcome:
    """The outcome if the broker crashes afterwards, so that no later attempt changes it."""
    async with staged() as on:
        with ExitStack() as scene:
            await _warm(on)
            tries = len(on.requests(PRODUCE))
            _strike(on, scene, failure, PRODUCE)
            delivery = await _send(on, failure)
            if failure is not Failure.NO_COMMON_VERSION:
                await until(lambda: len(on.requests(PRODUCE)) > tries and not on.producer.metrics().in_flight)
                on.cluster.crash_broker(0)
            return await _outcome_of(delivery)


async def _outcome_of(delivery: Delivery) -> Outcome:
    await asyncio.wait([delivery])
    error = delivery.exception()
    assert isinstance(error, DeliveryError)
    return error.outcome


# Produce while the connection to the broker is full


async def _fill(on: Stage) -> Delivery:
    """Send a record of which only the first bytes leave the process; answers still arrive."""
    on.network.hold(on.port, answers=False)
    delivery = await on.producer.send("t", bytes(LARGE), partition=0)
    await asyncio.sleep(0.1)
    assert not delivery.done(), delivery.exception()
    return delivery


async def _not_written(acks: int | str, *, heals: bool) -> Any:
    """A request that is still unsent when the connection is closed because of the request before it."""
    async with staged(acks=acks) as on:
        await _warm(on)
        before = len(on.requests(PRODUCE))
        filling = await _fill(on)
        behind = await on.producer.send("t", b"behind", partition=1)
        await asyncio.sleep(0.1)
        assert on.producer.metrics().in_flight == 2
        await until(lambda: not on.producer.metrics().in_flight)
        on.network.release()
        if not heals:
            on.cluster.crash_broker(0)
            assert await _outcome_of(filling) is Outcome.UNKNOWN
            return await _outcome_of(behind)
        await asyncio.wait([filling, behind])
        assert behind.exception() is None, (acks, behind.exception())
        await asyncio.sleep(1)
        assert filling.exception() is None or acks == 0
        sent_again = len(on.requests(PRODUCE)) - before
        assert sent_again == (1 if acks == 0 else 2), (
            "both requests are sent, the first one again only if it is acknowledged"
        )
        return Action.REFRESH


async def _unacknowledged(failure: Failure) -> Row:
    """With acks=0, a request that was partly sent is lost with its connection."""
    async with staged(acks=0) as on:
        with ExitStack() as scene:
            await _warm(on)
            before = len(on.requests(PRODUCE))
            asking = None
            if failure in (Failure.WRONG_CORRELATION_ID, Failure.UNDECODABLE):
                # The answer to another request on the connection makes no sense.
                fault = on.faults.add(
                    METADATA, delay=1.0, wrong_correlation_id=failure is not Failure.UNDECODABLE
                )
                if failure is Failure.UNDECODABLE:
                    scene.enter_context(altered(METADATA, partial(_nonsense, failure)))
                asking = asyncio.ensure_future(on.producer.partitions_for("u"))
                await fault.reached()
            delivery = await _fill(on)
            if failure is Failure.CUT:
                on.network.cut(on.port)
            await asyncio.wait([delivery])
            scene.close()
            on.network.release()
            error = delivery.exception()
            assert type(error) is DeliveryError
            check_flags(error)
            assert failure.value in str(error)
            await on.producer.send_and_wait("t", b"next", partition=0)
            await asyncio.sleep(1)
            assert [record.value for record in on.cluster.records("t", 0)] == [b"first", b"next"]
            assert len(on.requests(PRODUCE)) == before + 1
            if asking is not None:
                assert await asking == set(range(on.cluster.default_partitions))
            return Row(Action.FAIL, error.outcome)


# Ending a transaction


async def _commit(failure: Failure) -> Action:
    async with staged(transactional_id="tx") as on:
        with ExitStack() as scene:
            await _transact(on)
            found = len(on.requests(FIND))
            if failure is Failure.NOT_WRITTEN:
                on.cluster.crash_broker(0, 1.0)
                await asyncio.sleep(0.1)  # the producer notices the crash
            else:
                _strike(on, scene, failure, END)
            error = await error_of(on.producer.commit_transaction())
            values = [record.value for record in on.cluster.records("t", 0, committed=True)]
            if error is not None:
                assert type(error) is TransactionReinitError
                check_flags(error, "requires_reinit")
                assert (values, len(on.requests(END))) == ([], 0)
                return Action.FAIL
            assert values == [b"1"]
            assert len(on.requests(END)) == (1 if failure is Failure.NOT_WRITTEN else 2)
            assert len(on.requests(FIND)) > found
            return Action.REFRESH


async def _transact(on: Stage) -> None:
    await on.producer.begin_transaction()
    await on.producer.send_and_wait("t", b"1", partition=0)


async def _commit_then_never(failure: Failure) -> Outcome:
    async with staged(transactional_id="tx") as on:
        with ExitStack() as scene:
            await _transact(on)
            if failure is Failure.NOT_WRITTEN:
                on.cluster.crash_broker(0)
                await asyncio.sleep(0.1)
            else:
                _strike(on, scene, failure, END)
            committing = asyncio.ensure_future(error_of(on.producer.commit_transaction()))
            if failure not in (Failure.NOT_WRITTEN, Failure.NO_COMMON_VERSION):
                await until(lambda: on.requests(END) and not on.producer.metrics().in_flight)
                on.cluster.crash_broker(0)
            error = await committing
            assert error is not None
            if error.outcome is Outcome.UNKNOWN:
                assert type(error) is CommitOutcomeUnknownError
            else:
                assert type(error) in (TransactionAbortableError, TransactionReinitError)
            return error.outcome


# The producer id


async def _producer_id(failure: Failure) -> Action:
    """A request that puts no record in doubt, however it ends."""
    async with staged() as on:
        with ExitStack() as scene:
            asked = len(on.requests(INIT))
            if failure is Failure.NOT_WRITTEN:
                on.cluster.crash_broker(0, 1.0)
            else:
                _strike(on, scene, failure, INIT)
            error = await error_of(on.producer.send_and_wait("t", b"1", partition=0))
            asked = len(on.requests(INIT)) - asked
            if error is not None:
                assert type(error) is DeliveryError
                check_flags(error)
                assert (asked, error.attempts, error.outcome) == (0, 0, Outcome.NOT_PERSISTED)
                return Action.FAIL
            assert asked == (1 if failure is Failure.NOT_WRITTEN else 2)
            assert [record.value for record in on.cluster.records("t", 0)] == [b"1"]
            return Action.REFRESH
