"""Requests to a coordinator: one lookup for each key, retries until the answer is final, and honest outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from aioproducer.errors import (
    BrokerConnectionError,
    BrokerError,
    CommitOutcomeUnknownError,
    KafkaError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortableError,
    TransactionTimeoutError,
)
from aioproducer.metrics import Metrics
from aioproducer.network.backoff import FAST_RETRY
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from aioproducer.records._record_path import Gate
from aioproducer.testing.simulation.loop import simulate
from aioproducer.transactions.requests import CEILINGS_V1, ONE_GROUP, ONE_KEY, CoordinatorRequests
from aioproducer.transactions.state import Transaction, TransactionState
from tests.support.scripted_broker import make_config

COMMIT, ABORT = EndTxnRequest(committed=True), EndTxnRequest(committed=False)
JOIN = AddOffsetsToTxnRequest(group_id="g")
ANSWERS = {
    ApiKey.END_TXN: EndTxnResponse,
    ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsToTxnResponse,
    ApiKey.OFFSET_FETCH: OffsetFetchResponse,
}
UNSENT = BrokerConnectionError("refused", written=False)
UNANSWERED = RequestTimedOutError("no answer", written=True)


class Brokers:
    """A broker that answers from a script of error codes and exceptions; the last one is repeated forever."""

    def __init__(self, *script: int | Exception) -> None:
        self._script = list(script) or [0]
        self.found: FindCoordinatorResponse | Exception = FindCoordinatorResponse(
            node_id=1, host="broker.example", port=9092
        )
        self.searches: list[tuple[str, int | None]] = []
        self.asked: list[tuple[int, int | None]] = []
        """The node of each request, and its highest allowed version."""
        self.timeouts: list[float] = []
        """The time limit of each request."""
        self.at_once = self.most_at_once = 0

    async def request_any(self, request, timeout, *, version_ceiling=None):
        self.searches.append((request.key, version_ceiling))
        self.timeouts.append(timeout)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    async def request_node(self, node_id, request, timeout, *, version_ceiling=None, about_to_write=None):
        self.asked.append((node_id, version_ceiling))
        self.timeouts.append(timeout)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        said = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if said is not UNSENT:
            about_to_write()
        if isinstance(said, Exception):
            raise said
        return ANSWERS[request.api_key](error_code=said)


def code_of(answer: Any) -> int:
    return answer.error_code


def requests_of(brokers: Brokers, version: int = 2) -> tuple[CoordinatorRequests, Transaction]:
    """Return the requests of an open transaction, and the transaction."""
    transaction = Transaction("tx", Gate())
    transaction.move(TransactionState.INITIALIZING)
    transaction.move(TransactionState.READY)
    transaction.begin(is_v2=version == 2)
    config = make_config(transactional_id="tx", max_block_ms=5000)
    return CoordinatorRequests(config, transaction, brokers, Metrics(), Random(7)), transaction


def played(main: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[Any, float]:
    """Run a call; return its result or exception, and the seconds of virtual time that it took."""

    async def timed() -> tuple[Any, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            result = await main()
        except KafkaError as error:
            result = error
        return result, loop.time() - began

    return simulate(timed)


# ------------------------------------------------------------------------------------------------ the coordinator


def test_a_coordinator_is_looked_up_once_for_each_key():
    brokers = Brokers()
    requests, _ = requests_of(brokers)

    async def main():
        await requests.ask(JOIN, code_of)
        await requests.ask(ABORT, code_of)
        await requests.ask(JOIN, code_of, group="g")

    assert played(main)[0] is None
    assert brokers.searches == [("tx", ONE_KEY), ("g", ONE_KEY)]
    assert [node for node, _ in brokers.asked] == [1, 1, 1]


@pytest.mark.parametrize(
    ("said", "searches"),
    [(ErrorCode.NOT_COORDINATOR, 2), (UNSENT, 2), (UNANSWERED, 2), (ErrorCode.CONCURRENT_TRANSACTIONS, 1)],
)
def test_a_coordinator_is_looked_up_again_if_it_may_have_moved_but_not_if_it_is_busy(said, searches):
    brokers = Brokers(said, 0)
    requests, _ = requests_of(brokers)

    answer, _ = played(lambda: requests.ask(JOIN, code_of))

    assert code_of(answer) == 0
    assert len(brokers.asked) == 2
    assert len(brokers.searches) == searches


@pytest.mark.parametrize(
    "place", [{"node_id": -1}, {"host": ""}, {"port": 0}, {"port": 65536}], ids=lambda place: str(place)
)
def test_a_coordinator_with_an_invalid_address_is_not_contacted(place):
    brokers = Brokers()
    brokers.found = FindCoordinatorResponse(**{"node_id": 1, "host": "broker.example", "port": 9092, **place})
    requests, _ = requests_of(brokers)

    error, took = played(lambda: requests.ask(JOIN, code_of))

    assert isinstance(error, TransactionTimeoutError)
    assert "reported an invalid coordinator" in str(error)
    assert took == pytest.approx(5.0, abs=0.5)
    assert len(brokers.searches) > 1
    assert brokers.asked == []


# ---------------------------------------------------------------------------------------------------- the request


@pytest.mark.parametrize("version", [1, 2])
def test_versions_above_the_ceilings_are_not_used(version):
    brokers = Brokers()
    requests, _ = requests_of(brokers, version)

    async def main():
        await requests.ask(ABORT, code_of)
        await requests.ask(JOIN, code_of)
        await requests.ask(OffsetFetchRequest(group_id="g"), code_of, group="g")

    assert played(main)[0] is None
    end = CEILINGS_V1[ApiKey.END_TXN] if version == 1 else None
    assert [ceiling for _, ceiling in brokers.asked] == [end, None, ONE_GROUP]


def test_only_one_request_is_in_flight():
    brokers = Brokers()
    requests, _ = requests_of(brokers)

    async def main():
        return await asyncio.gather(*(requests.ask(JOIN, code_of) for _ in range(5)))

    assert [code_of(answer) for answer in played(main)[0]] == [0] * 5
    assert brokers.most_at_once == 1


def test_requests_that_would_join_a_transaction_being_aborted_are_not_sent():
    brokers = Brokers()
    requests, transaction = requests_of(brokers)
    transaction.move(TransactionState.ABORTING)

    async def main():
        with pytest.raises(TransactionAbortableError):
            await requests.ask(JOIN, code_of)
        assert brokers.asked == []
        return await requests.ask(ABORT, code_of)

    assert code_of(played(main)[0]) == 0
    assert len(brokers.asked) == 1


# ------------------------------------------------------------------------------------------------ unknown outcomes


@pytest.mark.parametrize(
    ("request_", "script", "error"),
    [
        (JOIN, [UNANSWERED], TransactionTimeoutError),
        (ABORT, [UNANSWERED], TransactionTimeoutError),
        (COMMIT, [UNSENT], TransactionAbortableError),
        (COMMIT, [UNANSWERED], CommitOutcomeUnknownError),
        (COMMIT, [UNANSWERED, UNSENT], CommitOutcomeUnknownError),
    ],
    ids=["join", "abort", "commit unsent", "commit unanswered", "commit unanswered and then unsent"],
)
def test_only_a_commit_with_a_sent_attempt_has_an_unknown_outcome(request_, script, error):
    requests, _ = requests_of(Brokers(*script))

    caught, took = played(lambda: requests.ask(request_, code_of))

    assert type(caught) is error
    assert "max_block_ms" in str(caught)
    assert took == pytest.approx(5.0, abs=0.5)


def test_a_commit_whose_coordinator_was_not_found_was_not_sent():
    brokers = Brokers()
    brokers.found = UNANSWERED
    requests, transaction = requests_of(brokers)

    caught, _ = played(lambda: requests.ask(COMMIT, code_of))

    assert type(caught) is TransactionAbortableError
    assert not transaction.epoch_is_spent
    assert brokers.asked == []


def test_a_commit_sent_by_an_earlier_call_stays_in_doubt_even_if_it_cannot_be_sent_again():
    for is_repetition, error in ((True, CommitOutcomeUnknownError), (False, TransactionAbortableError)):
        requests, _ = requests_of(Brokers(UNSENT))

        caught, _ = played(
            lambda: requests.ask(COMMIT, code_of, is_repetition=is_repetition)  # noqa: B023  # called immediately
        )

        assert type(caught) is error


@pytest.mark.parametrize(("seconds", "took"), [(None, 5), (1, 1), (7, 7)])
def test_a_request_is_sent_until_max_block_ms_or_an_earlier_deadline(seconds, took):
    requests, _ = requests_of(Brokers(UNSENT))

    async def main():
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        await requests.ask(JOIN, code_of, deadline=deadline)

    error, seconds_taken = played(main)
    assert isinstance(error, TransactionTimeoutError)
    assert seconds_taken == pytest.approx(took, abs=0.002)


def test_an_attempt_just_before_the_deadline_still_has_a_second_for_its_answer():
    """Otherwise, a commit sent just before the deadline would needlessly have an unknown outcome."""
    brokers = Brokers()
    requests, _ = requests_of(brokers)

    async def main():
        loop = asyncio.get_running_loop()
        for seconds in (0.1, 3, 100):
            await requests.ask(JOIN, code_of, group=f"{seconds}", deadline=loop.time() + seconds)

    played(main)
    # the search for the coordinator and then the request, which gets the time that the search has left
    request_timeout = make_config().request_timeout
    assert brokers.timeouts == pytest.approx([1, 1, 3, 3, request_timeout, request_timeout], abs=0.002)


def test_the_first_pause_is_short_and_the_next_ones_grow():
    def seconds_with(failures: int) -> float:
        requests, _ = requests_of(Brokers(*[UNSENT] * failures, 0))
        return played(lambda: requests.ask(JOIN, code_of))[1]

    took = [seconds_with(failures) for failures in (1, 2, 6)]
    first, _ = FAST_RETRY

    assert first / 2 <= took[0] - 0.002 <= first
    assert took[1] - took[0] > first / 2
    assert took[2] > 8 * first


def test_a_request_that_was_answered_only_at_the_second_attempt_leaves_a_late_copy_behind():
    requests, transaction = requests_of(Brokers(UNANSWERED, 0))

    async def main():
        await requests.ask(JOIN, code_of)
        doubts = [requests.was_in_doubt]
        await requests.ask(JOIN, code_of)
        return [*doubts, requests.was_in_doubt]

    assert played(main)[0] == [True, False]
    assert transaction.epoch_is_spent


def test_an_attempt_that_was_not_sent_leaves_nothing_behind():
    requests, transaction = requests_of(Brokers(UNSENT, 0))

    answer, _ = played(lambda: requests.ask(JOIN, code_of))

    assert code_of(answer) == 0
    assert not requests.was_in_doubt
    assert not transaction.epoch_is_spent


# -------------------------------------------------------------------------------------------------- final answers


@pytest.mark.parametrize(
    ("request_", "code", "error"),
    [
        (JOIN, ErrorCode.GROUP_AUTHORIZATION_FAILED, TransactionAbortableError),
        (JOIN, ErrorCode.PRODUCER_FENCED, ProducerFencedError),
        (OffsetFetchRequest(group_id="g"), ErrorCode.GROUP_AUTHORIZATION_FAILED, BrokerError),
    ],
    ids=["the transaction is aborted", "the producer is fenced", "a query does not affect the transaction"],
)
def test_a_final_error_is_not_retried_and_names_the_code(request_, code, error):
    brokers = Brokers(code)
    requests, transaction = requests_of(brokers)

    caught, took = played(lambda: requests.ask(request_, code_of))

    assert type(caught) is error
    assert code.name in str(caught)
    assert len(brokers.asked) == 1
    assert took < 1
    assert transaction.state is TransactionState.IN_TRANSACTION, (
        "Coordinator applies the error, not the request"
    )
