"""One pass of the sender, one request and one answer: real batches between stubs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from aioproducer.errors import BrokerConnectionError, KafkaError, UnsupportedVersionError
from aioproducer.protocol.api import ApiKey, VersionRange
from aioproducer.protocol.messages import ProduceResponse
from aioproducer.protocol.produce import Appended, ProduceBatches
from aioproducer.records._record_path import Gate
from aioproducer.records.batch import NAMED
from aioproducer.records.idempotence import Idempotence, ProducerIdentity
from aioproducer.sending import sender as module
from aioproducer.sending.sender import Sender
from aioproducer.transactions.roles import Participant
from aioproducer.transactions.state import Transaction, TransactionState
from aioproducer.types import TopicPartition
from tests.support.accumulator_bench import Bench, cluster_of, note_answered, topic_info

IDENTITY = ProducerIdentity(4711, 3)
ONE_RECORD = {"batch_size": 1, "linger_ms": 0}
NEWEST = {ApiKey.PRODUCE: VersionRange(3, 13)}


class Line:
    """A connection that only records its requests."""

    def __init__(self, calls: list, node_id: int = 0, room: int = 5) -> None:
        self.node = SimpleNamespace(node_id=node_id)
        self.versions = SimpleNamespace(ranges=NEWEST)
        self.reports_room = False
        self.room = room
        self.requests: list[SimpleNamespace] = []
        self.refuses: Exception | None = None
        self._calls = calls

    @property
    def can_send(self) -> bool:
        return len(self.requests) < self.room

    def cork(self) -> None:
        self._calls.append(("cork", self.node.node_id))

    def uncork(self) -> None:
        self._calls.append(("uncork", self.node.node_id))

    def request(self, request: ProduceBatches, **arguments: object) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.requests.append(SimpleNamespace(request=request, **arguments))


class Stage:
    """A Sender with a real accumulator and a topic whose partitions have these leaders. The calls to
    all other parts are recorded."""

    def __init__(
        self, leaders=(0,), *, transactional_id: str | None = None, topic_id: int = 1, **settings
    ) -> None:
        self.bench = bench = Bench(leaders, **{**ONE_RECORD, **settings})
        self.calls: list[tuple] = []
        self.lines = {node: Line(self.calls, node) for node in set(leaders)}
        self.late = False
        self.watch: float | None = None
        self.retry: float | None = None
        self.transaction = Transaction(transactional_id, Gate())
        self.idempotence = Idempotence(False)
        self.brokers = SimpleNamespace(
            ready=lambda node: line if (line := self.lines.get(node)) is not None and line.can_send else None,
            retry_at=lambda node, now: self.retry,
            update_wanted=False,
        )
        self.metadata = SimpleNamespace(
            version=0,
            cluster=cluster_of(topic_info(leaders, topic_id=topic_id)),
            touch=self._noting("touch", 1),
            request_update=self._noting("request_update"),
        )
        coordinator = SimpleNamespace(
            add_partitions=self._noting("add_partitions"),
            expiry=SimpleNamespace(watch=lambda now: self.watch),
        )
        self.sender = sender = Sender(
            bench.core,
            bench.accumulator,
            self.brokers,
            self.metadata,
            self.idempotence,
            self.transaction,
            coordinator,
        )
        self.ids = sender._producer_ids = SimpleNamespace(
            rejection=None, was_asked=True, ask=self._noting("ask")
        )
        sender._giving_up = SimpleNamespace(
            expire_overdue=lambda now: self.late,
            fail_unnumbered=self._noting("fail_unnumbered"),
            abort_unsent=self._noting("abort_unsent"),
            abort_all=self._noting("abort_all"),
        )
        sender._numbering = SimpleNamespace(prepare=lambda queue: True, number=self._noting("number"))
        sender._results = SimpleNamespace(
            losses=SimpleNamespace(look_at=self._noting("look_at", 1)),
            apply_failure=self._noting("apply_failure"),
            complete=self._noting("complete"),
            apply_success=self._noting("apply_success"),
            apply_response=self._noting("apply_response"),
        )
        sender._seen_metadata = 0

    def _noting(self, name: str, most: int | None = None):
        def note(*arguments: object, **keywords: object) -> None:
            self.calls.append((name, *arguments[:most], *keywords.items()))

        return note

    def named(self, *names: str) -> list[tuple]:
        """Return the calls with these names."""
        return [call for call in self.calls if call[0] in names]

    def run(self, now: float | None = None) -> float | None:
        """Run one pass."""
        self.bench.wake.clear()
        return self.sender._pass(self.bench.loop.time() if now is None else now)

    def in_transaction(self, state: TransactionState = TransactionState.IN_TRANSACTION) -> None:
        self.transaction.state = state

    def sent(self, node: int = 0) -> list[list[tuple[str, int, int]]]:
        """Return, for each request to the node, its topics with their ids and numbers of batches."""
        return [
            [(name, topic_id, len(batches)) for name, topic_id, batches in entry.request.topics]
            for entry in self.lines[node].requests
        ]


# ------------------------------------------------------------------------------------------------------ a pass


async def test_new_metadata_is_applied_once():
    stage = Stage()
    stage.run()
    assert stage.named("look_at") == []

    stage.metadata.version = 1
    stage.metadata.cluster = cluster_of(topic_info((7,)))
    stage.run()
    stage.run()

    assert stage.named("look_at") == [("look_at", stage.metadata.cluster)]
    assert stage.bench.topic.queues[0].node_id == 7


async def test_without_a_producer_id_the_waiting_records_fail_once():
    stage = Stage()
    error = stage.ids.rejection = KafkaError("no id")
    stage.run()
    stage.run()
    assert stage.named("fail_unnumbered") == [("fail_unnumbered", error)]


@pytest.mark.parametrize(
    ("transactional_id", "state", "fail"),
    [
        (None, TransactionState.NONE, False),
        ("tx", TransactionState.IN_TRANSACTION, False),
        ("tx", TransactionState.ABORT_REQUIRED, True),
        ("tx", TransactionState.ABORTING, True),
    ],
)
async def test_records_of_a_transaction_that_rejects_them_fail(transactional_id, state, fail):
    stage = Stage(transactional_id=transactional_id)
    stage.in_transaction(state)
    cause = stage.transaction.error = KafkaError("why")
    stage.run()
    assert stage.named("abort_unsent") == ([("abort_unsent", cause)] if fail else [])


async def test_for_late_batches_the_next_pass_follows_shortly():
    stage = Stage()
    stage.late = True
    assert stage.run(100.0) == 100.0 + module.UNREAD_ANSWER_GRACE


async def test_the_next_pass_is_at_the_earliest_time_that_any_part_requested():
    stage = Stage(linger_ms=60_000, batch_size=1000, transactional_id="tx")
    stage.in_transaction()
    now = stage.bench.loop.time()
    stage.bench.send()
    stage.watch = now + 7
    assert stage.run(now) == now + 7
    stage.watch = None
    assert stage.run(now) == pytest.approx(now + 60, abs=1)


async def test_without_records_the_watch_of_a_transaction_determines_the_next_pass():
    stage = Stage(transactional_id="tx")
    stage.in_transaction()
    stage.watch = 107.0
    assert stage.run(100.0) == 107.0


async def test_without_records_and_deadlines_there_is_no_next_pass():
    assert Stage().run() is None


async def test_a_broker_that_is_not_ready_is_tried_again_at_its_time():
    stage = Stage()
    now = stage.bench.loop.time()
    stage.lines.clear()
    stage.retry = now + 3
    stage.bench.send()
    assert stage.run(now) == now + 3
    assert stage.calls == []


async def test_partitions_without_a_leader_request_metadata_and_keep_their_topics():
    stage = Stage((-1, -1))
    stage.bench.send(0)
    stage.bench.send(1)
    stage.run()
    assert stage.calls == [("touch", "orders"), ("request_update",)]


@pytest.mark.parametrize("was_asked", [False, True])
@pytest.mark.parametrize("has_records", [False, True])
async def test_a_producer_id_is_requested_at_the_start_and_when_records_need_it(was_asked, has_records):
    stage = Stage()
    stage.idempotence = stage.sender._idempotence = Idempotence(True)
    stage.ids.was_asked = was_asked
    if has_records:
        stage.bench.send()
    stage.run()
    assert stage.named("ask") == ([("ask",)] if has_records or not was_asked else [])
    assert stage.sent() == [], "nothing is sent without an id"


async def test_a_producer_that_needs_no_id_requests_none():
    stage = Stage()
    stage.ids.was_asked = False
    stage.run()
    assert stage.named("ask") == []


async def test_a_transaction_gets_its_id_only_from_the_coordinator():
    stage = Stage(transactional_id="tx")
    stage.idempotence = stage.sender._idempotence = Idempotence(True)
    stage.ids.was_asked = False
    stage.in_transaction()
    stage.run()
    assert stage.named("ask") == []


async def test_partitions_that_have_to_join_are_added():
    stage = Stage(transactional_id="tx")
    stage.in_transaction()
    stage.run()
    assert stage.named("add_partitions") == []
    stage.transaction.wanted[TopicPartition("orders", 0)] = None
    stage.run()
    assert stage.named("add_partitions") == [("add_partitions",)]


async def test_a_request_for_new_metadata_is_passed_on_once():
    stage = Stage()
    stage.brokers.update_wanted = True
    stage.run()
    stage.run()
    assert stage.named("request_update") == [("request_update",)]


async def test_the_watch_of_the_loop_runs_while_records_wait():
    stage = Stage(linger_ms=60_000, batch_size=1000)
    stage.run()
    assert not stage.sender._loop_watch.is_running
    stage.bench.send()
    stage.run()
    assert stage.sender._loop_watch.is_running
    timer = stage.sender._loop_watch._timer
    stage.run()
    assert stage.sender._loop_watch._timer is timer, "one timer, however many passes there are"
    stage.sender._loop_watch.close()


# --------------------------------------------------------------------------------------------- a node in a pass


async def test_requests_to_a_node_are_sent_together():
    stage = Stage((0, 0))
    for partition in (0, 1, 0):
        stage.bench.send(partition)
    stage.run()
    assert stage.sent() == [[("orders", 1, 2)], [("orders", 1, 1)]]
    assert [call for call in stage.calls if "cork" in call[0]] == [("cork", 0), ("uncork", 0)]


async def test_a_full_connection_is_tried_again_at_the_time_of_its_broker():
    stage = Stage()
    now = stage.bench.loop.time()
    stage.lines[0].room = 1
    stage.retry = now + 2
    stage.bench.send()
    stage.bench.send()
    assert stage.run(now) == now + 2
    assert len(stage.sent()) == 1
    assert stage.calls[-1] == ("uncork", 0)


async def test_a_pass_sends_a_limited_number_of_batches_and_the_next_one_continues(monkeypatch):
    monkeypatch.setattr(module, "MOST_IN_REQUEST", 2)
    monkeypatch.setattr(module, "ENOUGH_FOR_PASS", 2)
    stage = Stage((0, 0, 0))
    for partition in range(3):
        stage.bench.send(partition)
    assert stage.run() is not None
    assert stage.sent() == [[("orders", 1, 2)]]
    assert stage.bench.wake.is_set()
    stage.run()
    assert stage.sent()[1:] == [[("orders", 1, 1)]]
    assert not stage.bench.wake.is_set()


async def test_a_pass_sends_100_batches_so_that_other_tasks_can_run():
    stage = Stage((0,) * 101)
    for partition in range(101):
        stage.bench.send(partition)
    stage.run()
    assert stage.sent() == [[("orders", 1, 100)]]
    stage.run()
    assert stage.sent()[1:] == [[("orders", 1, 1)]]


async def test_a_pass_to_many_nodes_sends_fewer_batches_since_each_request_takes_time_too():
    stage = Stage(tuple(range(11)))
    for partition in range(11):
        stage.bench.send(partition)
    stage.run()
    assert [len(stage.sent(node)) for node in range(11)] == [1] * 10 + [0]
    stage.run()
    assert [len(stage.sent(node)) for node in range(11)] == [1] * 11


@pytest.mark.parametrize(("missing", "requests"), [(0, 1), (1, 2)])
async def test_a_request_is_filled_to_its_last_byte_and_no_further(missing, requests):
    value = b"v" * 1000
    size = Bench((0,)).send(value=value).batch.size
    stage = Stage((0, 0), max_request_size=2 * size - missing)
    for partition in range(2):
        assert stage.bench.send(partition, value).batch.size == size
    stage.run()
    assert len(stage.sent()) == requests


async def test_a_node_that_was_not_reached_begins_the_next_pass(monkeypatch):
    monkeypatch.setattr(module, "ENOUGH_FOR_PASS", 1)
    stage = Stage((0, 1))
    stage.bench.send(0)
    stage.bench.send(1)
    stage.run()
    assert (len(stage.sent(0)), len(stage.sent(1))) == (1, 0)
    assert stage.bench.wake.is_set()
    stage.run()
    assert (len(stage.sent(0)), len(stage.sent(1))) == (1, 1)


async def test_nodes_with_ever_new_batches_do_not_keep_the_others_waiting(monkeypatch):
    monkeypatch.setattr(module, "ENOUGH_FOR_PASS", 10)
    stage = Stage((0, 1, 2, 3))
    for _ in range(4):
        for partition in range(4):
            stage.bench.send(partition)
        stage.run()
    assert all(stage.sent(node) for node in range(4))


async def test_a_transaction_sends_everything_in_one_pass(monkeypatch):
    monkeypatch.setattr(module, "ENOUGH_FOR_PASS", 1)
    stage = Stage((0, 0), transactional_id="tx")
    stage.in_transaction()
    stage.bench.send(0)
    stage.bench.send(1)
    stage.run()
    assert stage.sent() == [[("orders", 1, 2)]]


async def test_the_first_request_of_a_participant_to_a_node_has_all_its_buffered_batches(monkeypatch):
    stage = Stage((0, 0), transactional_id="tx", linger_ms=60_000, batch_size=1000)
    stage.transaction.role = Participant([], detects_repetitions=False)
    stage.in_transaction(TransactionState.PARTICIPANT)
    hurried = []
    hurry = stage.bench.accumulator.hurry_node
    monkeypatch.setattr(
        stage.bench.accumulator, "hurry_node", lambda node: (hurried.append(node), hurry(node))
    )
    for partition in range(2):
        stage.bench.send(partition)
    stage.bench.topic.queues[0].tail.is_due = True
    stage.bench.accumulator.touch(stage.bench.topic.queues[0])
    stage.run()
    stage.bench.send(0)
    stage.bench.topic.queues[0].tail.is_due = True
    stage.bench.accumulator.touch(stage.bench.topic.queues[0])
    stage.run()
    assert hurried == [0]
    assert stage.sent()[0] == [("orders", 1, 2)]


@pytest.mark.parametrize("is_up", [False, True])
async def test_whether_a_broker_accepts_records_is_noted_for_the_choice_of_partitions(is_up):
    stage = Stage(partitioner_availability_timeout_ms=1000)
    if not is_up:
        stage.lines.clear()
    stage.bench.send()
    stage.run(10.0)
    assert stage.bench.accumulator.availability._since == ({} if is_up else {0: 10.0})


# ---------------------------------------------------------------------------------------------------- a request


async def test_a_request_has_the_settings_and_its_batches_by_topic():
    stage = Stage((0, 0), acks=1, request_timeout_ms=1500)
    stage.bench.accumulator.open_topic(topic_info((0,), "others", 2))
    stage.metadata.cluster = cluster_of(topic_info((0, 0)), topic_info((0,), "others", 2))
    stage.bench.send(0)
    stage.bench.send(0, topic="others")
    stage.bench.send(1)
    stage.run()

    [entry] = stage.lines[0].requests
    assert stage.sent() == [[("orders", 1, 2), ("others", 2, 1)]]
    assert (entry.request.transactional_id, entry.request.acks, entry.request.timeout_ms) == (
        None,
        1,
        1500,
    )
    assert (entry.timeout, entry.version_ceiling, entry.expects_response) == (1.5, None, True)
    batches = entry.answered.args[1]
    assert [batch.queue.topic for batch in batches] == ["orders", "orders", "others"], (
        "in the order of the request"
    )
    assert [call for call in stage.calls if call[0] in ("touch", "number")] == [
        ("touch", "orders"),
        ("number", batches[0]),
        ("touch", "others"),
        ("number", batches[2]),
        ("number", batches[1]),
    ]
    for batch in batches:
        assert (batch.broker, batch.attempts) == (0, 1)
        assert list(batch.queue.in_flight) == [batch]


async def test_without_acks_no_response_is_expected():
    stage = Stage(acks=0)
    stage.bench.send()
    stage.run()
    assert stage.lines[0].requests[0].expects_response is False


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_topic_without_an_id_is_addressed_by_name(is_known):
    stage = Stage(topic_id=0)
    if not is_known:
        stage.metadata.cluster = cluster_of()
    stage.bench.send()
    stage.run()
    assert stage.sent() == [[("orders", 0, 1)]]
    assert stage.lines[0].requests[0].version_ceiling == module.LAST_VERSION_WITH_TOPIC_NAMES == 12


@pytest.mark.parametrize(("is_v2", "ceiling"), [(False, 11), (True, None)])
async def test_the_version_of_a_transaction_limits_the_version_of_the_request(is_v2, ceiling):
    stage = Stage(transactional_id="tx")
    stage.in_transaction()
    stage.transaction.is_v2 = is_v2
    stage.bench.send()
    stage.run()
    [entry] = stage.lines[0].requests
    assert entry.version_ceiling == ceiling
    assert list(stage.transaction.written) == [TopicPartition("orders", 0)]
    assert entry.request.transactional_id is stage.bench.config.transactional_id


async def test_batches_are_counted_at_their_first_attempt_and_as_retries_later():
    stage = Stage((0, 0))
    metrics = stage.bench.core.metrics
    stage.bench.send(0)
    stage.bench.send(1)
    stage.run(stage.bench.loop.time() + 3)
    batches = stage.lines[0].requests[0].answered.args[1]
    topic = metrics.topics["orders"]
    assert (metrics.produce_requests, metrics.batches, metrics.records_sent, metrics.retries) == (1, 2, 2, 0)
    assert metrics.batch_bytes == sum(batch.wire_size for batch in batches)
    assert metrics.record_bytes == sum(batch.size for batch in batches)
    assert (metrics.batch_size.count, metrics.records_per_request.maximum) == (2, 2)
    assert metrics.queue_time.count == 2
    assert metrics.queue_time.maximum == pytest.approx(3, abs=1)
    assert (topic.batch_bytes, topic.retries) == (metrics.batch_bytes, 0)

    note_answered(batches[0])
    batches[0].mark_returned()
    stage.bench.accumulator.requeue(batches[0], 0.0)
    stage.run()
    assert (metrics.produce_requests, metrics.batches, metrics.records_sent, metrics.retries) == (2, 2, 2, 1)
    assert (topic.batch_bytes, topic.retries) == (metrics.batch_bytes, 1)
    assert (metrics.records_retried, topic.records_retried) == (1, 1)


async def test_a_request_without_a_common_version_fails_in_the_next_turn():
    stage = Stage()
    error = stage.lines[0].refuses = UnsupportedVersionError("too old")
    stage.bench.send()
    stage.run()
    assert stage.named("apply_failure") == []
    await asyncio.sleep(0)
    [(_, batch, found, _, topic_id)] = stage.named("apply_failure")
    assert (batch.queue.topic, found, topic_id) == ("orders", error, 1)


# ---------------------------------------------------------------------------------------------------- an answer


def sent_batches(stage: Stage):
    """Send a record; return the callback of its request and the batches in it."""
    stage.bench.send()
    stage.run()
    answered = stage.lines[0].requests[-1].answered
    stage.calls.clear()
    stage.bench.wake.clear()
    return answered, answered.args[1]


async def test_a_lost_connection_fails_each_batch_and_wakes_the_sender():
    stage = Stage()
    answered, [batch] = sent_batches(stage)
    error = BrokerConnectionError("lost")
    answered(None, error)
    assert stage.named("apply_failure") == [("apply_failure", batch, error, stage.calls[0][3], 1)]
    assert list(batch.queue.in_flight) == []
    assert stage.bench.wake.is_set()


async def test_without_acks_a_written_batch_is_complete():
    stage = Stage(acks=0)
    answered, [batch] = sent_batches(stage)
    answered(None, None)
    assert [call[:2] for call in stage.calls] == [("complete", batch)]


async def test_plain_success_takes_the_short_path():
    stage = Stage()
    answered, batches = sent_batches(stage)
    response = Appended([(0, 5, -1, 0)], 0)
    answered(response, None)
    assert [call[:3] for call in stage.calls] == [("apply_success", batches, response)]


async def test_any_other_response_is_applied_with_the_names_of_its_topics():
    stage = Stage()
    answered, batches = sent_batches(stage)
    response = ProduceResponse()
    answered(response, None)
    [(_, node_id, found, names, addressed, answer, _)] = stage.named("apply_response")
    assert (node_id, found, names, addressed) == (0, batches, {1: "orders"}, {"orders": 1})
    assert answer is response


@pytest.mark.parametrize(
    ("case", "addressed"),
    [
        ("by id", 1),
        ("an older broker", NAMED),
        ("an unknown broker", NAMED),
        ("a transaction", NAMED),
        ("no id", NAMED),
    ],
)
async def test_the_way_in_which_a_request_addressed_its_topics_is_recognized(case, addressed):
    stage = Stage(
        transactional_id="tx" if case == "a transaction" else None, topic_id=0 if case == "no id" else 1
    )
    stage.in_transaction() if case == "a transaction" else None
    if case == "an older broker":
        stage.lines[0].versions.ranges = {ApiKey.PRODUCE: VersionRange(3, 12)}
    elif case == "an unknown broker":
        stage.lines[0].versions.ranges = {}
    answered, _ = sent_batches(stage)
    answered(None, BrokerConnectionError("lost"))
    assert stage.calls[0][4] == addressed


@pytest.mark.parametrize(
    "case",
    ["only a place is free", "the connection has room", "not plain", "a leader moved", "a transaction"],
)
async def test_an_answer_that_only_frees_a_slot_does_not_wake_the_sender(case):
    stage = Stage(transactional_id="tx" if case == "a transaction" else None)
    if case == "a transaction":
        stage.in_transaction()
    answered, [batch] = sent_batches(stage)
    stage.lines[0].reports_room = case != "the connection has room"
    if case == "a leader moved":
        batch.queue.node_id = 1
    answered(ProduceResponse() if case == "not plain" else Appended([(0, 5, -1, 0)], 0), None)
    assert stage.bench.wake.is_set() is (case != "only a place is free")


async def test_records_that_waited_for_the_answer_are_due_in_the_next_pass():
    stage = Stage()
    stage.sender._numbering.prepare = lambda queue: not queue.in_flight
    answered, _ = sent_batches(stage)
    stage.bench.send()
    stage.run()
    assert len(stage.sent()) == 1
    answered(Appended([(0, 5, -1, 0)], 0), None)
    stage.run()
    assert len(stage.sent()) == 2


async def test_remaining_batches_are_given_up_at_the_end():
    stage = Stage()
    stage.sender.abort("closed")
    assert stage.calls == [("abort_all", "closed", ("is_wanted", False))]


async def test_the_end_of_the_task_stops_its_timers():
    stage = Stage(linger_ms=60_000, batch_size=1000)
    closed = []

    async def close() -> None:
        closed.append("ids")

    stage.ids.close = close
    stage.bench.wake.sleep = lambda until: asyncio.sleep(3600)
    stage.bench.wake.close = lambda: closed.append("wake")
    stage.bench.send()
    task = asyncio.create_task(stage.sender.run())
    await asyncio.sleep(0)
    assert stage.sender._loop_watch.is_running
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["wake", "ids"]
    assert stage.sender._loop_watch._timer is None


async def test_a_task_that_is_discarded_with_its_loop_waits_for_nothing():
    stage = Stage()
    stage.ids.close = None  # calling it would be an error
    stage.bench.wake.sleep = lambda until: asyncio.sleep(3600)
    running = stage.sender.run()
    running.send(None)
    running.close()
