"""The task that gets a producer id: its requests, its retries, and the errors that it reports."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from aioproducer.core import Core
from aioproducer.errors import BrokerConnectionError, BrokerError, ProtocolError, UnsupportedVersionError
from aioproducer.metrics import Metrics
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from aioproducer.records.idempotence import Idempotence, ProducerIdentity
from aioproducer.sending import producer_id
from aioproducer.sending.producer_id import ProducerIdSource
from tests.conftest import MS
from tests.support.scripted_broker import make_config

CONFIG = make_config(request_timeout_ms=1234, retry_backoff_ms=7, retry_backoff_max_ms=8)
GIVEN = InitProducerIdResponse(producer_id=4711, producer_epoch=3)


class Brokers:
    """A broker that answers in the order of the script, and not at all once the script has ended."""

    def __init__(self, *script):
        self.script = list(script)
        self.asked = []
        self.is_at_the_end = asyncio.Event()

    async def request_any(self, message, timeout):
        self.asked.append((message, timeout))
        if not self.script:
            self.is_at_the_end.set()
            await asyncio.Event().wait()
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Stage:
    """A ProducerIdSource with its dependencies."""

    def __init__(self, *script):
        self.brokers = Brokers(*script)
        self.idempotence = Idempotence(True)
        self.wake = asyncio.Event()
        self.metrics = Metrics()
        self.source = ProducerIdSource(
            Core(CONFIG, asyncio.get_running_loop(), self.wake, self.metrics, Random(1)),
            self.idempotence,
            self.brokers,
        )

    async def ask(self):
        self.wake.clear()
        self.source.ask()
        await asyncio.wait_for(self.wake.wait(), 5000 * MS)


@pytest.fixture
def pauses(monkeypatch):
    """Record the arguments of each back-off, without waiting."""
    asked = []

    def backoff(base, maximum, failures, random):
        assert isinstance(random, Random)
        asked.append((base, maximum, failures))
        return 0

    monkeypatch.setattr(producer_id, "backoff", backoff)
    return asked


def refusal(code):
    return InitProducerIdResponse(error_code=code)


async def test_an_id_is_requested_without_a_transactional_id_and_kept():
    stage = Stage(GIVEN)
    assert (stage.source.was_asked, stage.source.last_error, stage.source.rejection) == (False, None, None)

    await stage.ask()

    assert stage.idempotence.identity == ProducerIdentity(4711, 3)
    assert stage.source.was_asked
    [(request, timeout)] = stage.brokers.asked
    assert request == InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=2_147_483_647, producer_id=-1, producer_epoch=-1
    )
    assert timeout == 1.234
    await stage.source.close()


async def test_producer_id_zero_is_valid():
    stage = Stage(InitProducerIdResponse(producer_id=0, producer_epoch=0))

    await stage.ask()

    assert stage.idempotence.identity == ProducerIdentity(0, 0)


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), "COORDINATOR_LOAD_IN_PROGRESS"),
        (refusal(ErrorCode.NOT_COORDINATOR), "NOT_COORDINATOR"),
        (refusal(ErrorCode.UNKNOWN_SERVER_ERROR), "UNKNOWN_SERVER_ERROR"),
        (BrokerConnectionError("gone"), "BrokerConnectionError"),
        (InitProducerIdResponse(producer_id=-1, producer_epoch=0), "ProtocolError"),
        (InitProducerIdResponse(producer_id=4711, producer_epoch=-1), "ProtocolError"),
    ],
    ids=["loading", "not the coordinator", "anything", "connection", "no id", "no epoch"],
)
async def test_transient_errors_are_retried_with_a_growing_back_off(answer, name, pauses):
    stage = Stage(answer, answer, answer, GIVEN)

    await stage.ask()

    assert stage.idempotence.identity == ProducerIdentity(4711, 3)
    assert pauses == [(0.007, 0.008, 0), (0.007, 0.008, 1), (0.007, 0.008, 2)]
    assert stage.metrics.errors == {name: 3}
    assert stage.source.last_error is None
    assert stage.source.rejection is None


async def test_the_last_error_is_kept_until_an_id_was_obtained():
    stage = Stage(ProtocolError("first"), BrokerConnectionError("second"))
    stage.source.ask()

    await asyncio.wait_for(stage.brokers.is_at_the_end.wait(), 5000 * MS)

    assert str(stage.source.last_error) == "second"
    assert stage.source.rejection is None
    await stage.source.close()


@pytest.mark.parametrize(
    "answer",
    [
        refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        refusal(ErrorCode.PRODUCER_FENCED),
        UnsupportedVersionError("too old"),
    ],
    ids=["denied", "fenced", "too old"],
)
async def test_a_permanent_error_ends_the_task_until_the_next_request(answer, pauses):
    stage = Stage(answer, GIVEN)

    await stage.ask()

    assert stage.source.rejection is stage.source.last_error is not None
    assert stage.idempotence.identity is None
    assert pauses == []
    await stage.ask()
    assert stage.idempotence.identity == ProducerIdentity(4711, 3)
    assert len(stage.brokers.asked) == 2


async def test_the_error_of_a_rejected_request_names_the_code_and_the_fix():
    stage = Stage(refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    await stage.ask()

    error = stage.source.rejection
    assert isinstance(error, BrokerError)
    assert (error.code, error.name) == (31, "CLUSTER_AUTHORIZATION_FAILED")
    assert "CLUSTER_AUTHORIZATION_FAILED; grant IDEMPOTENT_WRITE" in str(error)


async def test_one_task_requests_the_id_and_close_ends_it():
    stage = Stage()
    await stage.source.close()  # no task has been started yet
    stage.source.ask()
    await asyncio.wait_for(stage.brokers.is_at_the_end.wait(), 5000 * MS)

    stage.source.ask()
    await asyncio.sleep(0)

    assert len(stage.brokers.asked) == 1
    [task] = asyncio.all_tasks() - {asyncio.current_task()}
    assert task.get_name() == "aioproducer-producer-id"
    async with asyncio.timeout(5000 * MS):
        await stage.source.close()
    assert task.cancelled()
