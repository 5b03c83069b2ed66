"""Single answers, or missing ones, for batches of a real accumulator: no broker, no sender."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from uuid import UUID

import pytest

from aioproducer import DeliveryError, DeliveryTimeoutError, Outcome
from aioproducer.cluster import LeaderHint
from aioproducer.errors import (
    BrokerConnectionError,
    BrokerError,
    ForeignPartitionError,
    MissingPartitionError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionReinitError,
    UnsupportedVersionError,
)
from aioproducer.network.backoff import FAST_RETRY
from aioproducer.observe.hooks import Hooks
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.protocol.messages import ProduceResponse
from aioproducer.protocol.outcomes import Moment
from aioproducer.protocol.produce import Appended
from aioproducer.records._record_path import BatchState, Delivery, Gate
from aioproducer.records.batch import NAMED, ProducerBatch
from aioproducer.records.idempotence import Idempotence, ProducerIdentity
from aioproducer.sending.produce_results import NOT_VERIFIED, ProduceResults
from aioproducer.transactions.roles import Participant
from aioproducer.transactions.state import Transaction, TransactionState
from tests.support.accumulator_bench import Bench, cluster_of, note_answered, topic_info
from tests.support.log_lines import log_lines

PartitionAnswer = ProduceResponse.PartitionProduceResponse
NamedRecord = ProduceResponse.BatchIndexAndErrorMessage
TOPIC_ID = 1
MIDDLE = SimpleNamespace(uniform=lambda low, high: (low + high) / 2)
"""A replacement for random numbers: always the middle of the range, so that each pause is known."""
ONE_BATCH_PER_RECORD = {"linger_ms": 0, "batch_size": 1}


class Stage:
    """A ProduceResults with a real accumulator and two partitions; calls to brokers and metadata are recorded."""

    def __init__(
        self,
        *,
        version: int | None = None,
        is_idempotent: bool = True,
        is_participant: bool = False,
        **settings,
    ) -> None:
        self.bench = bench = Bench(
            (0, 0), **{"linger_ms": 0, "retry_backoff_ms": 100, "retry_backoff_max_ms": 10_000, **settings}
        )
        self.heard: list[object] = []
        hook = SimpleNamespace(on_batch=self.heard.append, on_retry=self.heard.append)
        core = bench.core._replace(random=MIDDLE, hooks=Hooks([hook], "me"))
        self.metrics = core.metrics
        self.transaction = Transaction("tx" if version else None, Gate())
        if is_participant:
            self.transaction.role = Participant([], detects_repetitions=True)
            self.transaction.move(TransactionState.PARTICIPANT)
            self.transaction.is_v2 = version == 2
        elif version:
            for state in (TransactionState.INITIALIZING, TransactionState.READY):
                self.transaction.move(state)
            self.transaction.begin(is_v2=version == 2)
        self.identity = ProducerIdentity(4711, 3, is_transactional=bool(version)) if is_idempotent else None
        self.idempotence = Idempotence(is_idempotent)
        self.idempotence.use(self.identity)
        self.calls: list[tuple] = []
        self.metadata = SimpleNamespace(
            cluster=cluster_of(topic_info((0, 0))),
            apply_leader_hints=self._noting("apply_leader_hints"),
            doubt_leaders=self._noting("doubt_leaders"),
            request_update=self._noting("request_update"),
        )
        brokers = SimpleNamespace(
            disconnect=self._noting("disconnect"), renegotiate=self._noting("renegotiate")
        )
        self.results = ProduceResults(
            core, bench.accumulator, brokers, self.metadata, self.idempotence, self.transaction
        )
        self.accumulator = bench.accumulator
        self.now = bench.loop.time()

    def _noting(self, name: str):
        return lambda *arguments: self.calls.append((name, *arguments))

    def sent(self, partition: int = 0, records: int = 1, broker: int = 0) -> tuple[ProducerBatch, Delivery]:
        """Put a batch of `records` records in flight; return it with the delivery of its first record."""
        deliveries = [self.bench.send(partition) for _ in range(records)]
        batch = deliveries[0].batch
        assert all(delivery.batch is batch for delivery in deliveries)
        queue = batch.queue
        self.accumulator.close_first(queue)
        self.accumulator.take(queue)
        if self.identity is not None:
            if queue.sequence is None:
                queue.sequence = self.idempotence.sequence_of(None, UUID(int=TOPIC_ID), partition)
                queue.sequence.adopt(self.identity)
            batch.number(self.identity, self.idempotence.take(queue.sequence, batch.record_count))
        batch.mark_sent(broker)
        return batch, deliveries[0]

    def send_again(self, batch: ProducerBatch, broker: int = 0) -> None:
        """Send a queued batch, although its back-off has not passed."""
        batch.queue.batches = ()
        batch.queue.retry_at = 0.0
        batch.mark_sent(broker)

    def waiting(self, partition: int = 0) -> tuple[ProducerBatch, Delivery]:
        """Send a record, and close its batch, which then waits to be sent."""
        delivery = self.bench.send(partition)
        batch = delivery.batch
        self.accumulator.close_first(batch.queue)
        return batch, delivery

    def answer(
        self, *batches: ProducerBatch, response: ProduceResponse | None = None, **fields: object
    ) -> None:
        """Apply a response that has the same answer for each of these batches."""
        response = response or ProduceResponse()
        answers = [PartitionAnswer(index=batch.queue.partition, **fields) for batch in batches]
        response.responses = [
            ProduceResponse.TopicProduceResponse(name="orders", partition_responses=answers)
        ]
        self.apply(batches, response)

    def apply(self, batches, response: ProduceResponse) -> None:
        names, addressed = {TOPIC_ID: "orders"}, {"orders": TOPIC_ID}
        self.results.apply_response(0, list(batches), names, addressed, response, self.now)

    def fail(self, batch: ProducerBatch, error: BaseException, topic_id: int = TOPIC_ID) -> None:
        self.results.apply_failure(batch, error, self.now, topic_id)

    def retry_at(self, batch: ProducerBatch) -> float:
        """Return the seconds from now until a queued batch may be sent."""
        assert batch in batch.queue.batches
        assert batch.state is BatchState.CLOSED
        return batch.queue.retry_at - self.now

    def is_over(self, batch: ProducerBatch) -> bool:
        """Return whether a batch has ended and its memory is free."""
        return batch.state is BatchState.DONE and batch not in self.accumulator.incomplete

    def named(self, *names: str) -> list[tuple]:
        return [call for call in self.calls if call[0] in names]


# ------------------------------------------------------------------------------------------------------ success


async def test_a_plain_success_completes_its_records_and_is_counted():
    stage = Stage()
    batch, delivery = stage.sent(records=2, broker=2)
    stage.now += 3

    stage.results.apply_success([batch], Appended([(0, 5, 77, 1)], 0), stage.now)

    metadata = delivery.result()
    assert (metadata.offset, metadata.log_start_offset) == (5, 1)
    assert metadata.timestamp == 77
    assert stage.is_over(batch)
    assert batch.queue.sequence.confirmed_on == (stage.identity, 2)
    topic = stage.metrics.topics["orders"]
    assert (stage.metrics.records_acked, topic.records_acked, topic.last_ack) == (2, 2, stage.now)
    assert stage.metrics.time_to_ack.count == 2
    assert stage.metrics.time_to_ack.maximum == pytest.approx(3, abs=0.5)
    [event] = stage.heard
    assert (event.records, event.base_offset, event.error) == (2, 5, None)
    assert event.seconds == pytest.approx(3, abs=0.5)


async def test_counts_of_several_successes_add_up():
    stage = Stage()
    batches = [stage.sent(partition)[0] for partition in range(2)]
    stage.results.apply_success(batches, Appended([(0, 5, -1, -1), (1, 6, -1, -1)], 0), stage.now)
    assert (stage.metrics.records_acked, stage.metrics.topics["orders"].records_acked) == (2, 2)


async def test_a_fully_decoded_success_has_the_same_result():
    stage = Stage()
    batch, delivery = stage.sent()
    stage.answer(batch, base_offset=5, log_append_time_ms=77, log_start_offset=1)
    metadata = delivery.result()
    assert (metadata.offset, metadata.timestamp, metadata.log_start_offset) == (5, 77, 1)
    assert stage.metrics.errors == {}
    assert batch.last_error is None


async def test_a_duplicate_is_a_success_whose_offset_is_unknown():
    stage = Stage()
    batch, delivery = stage.sent()
    stage.answer(
        batch,
        error_code=Code.DUPLICATE_SEQUENCE_NUMBER,
        base_offset=5,
        log_append_time_ms=77,
        log_start_offset=1,
    )
    metadata = delivery.result()
    assert (metadata.offset, metadata.timestamp, metadata.log_start_offset) == (None, 77, 1)
    assert stage.metrics.errors == {}


async def test_without_acks_a_record_has_no_offset():
    stage = Stage(is_idempotent=False, acks=0)
    batch, delivery = stage.sent()
    stage.results.complete(batch, stage.now)
    metadata = delivery.result()
    assert (metadata.offset, metadata.log_start_offset) == (None, -1)


async def test_offsets_that_go_back_are_a_loss_of_data(caplog):
    stage = Stage(**ONE_BATCH_PER_RECORD)
    for base_offset in (5, 2, -1, 3):
        batch, _ = stage.sent()
        stage.answer(batch, base_offset=base_offset)
    assert stage.metrics.data_losses == 1
    assert "acknowledged records were lost (orders-0 up to offset 5)" in caplog.text


async def test_a_success_that_comes_after_the_end_of_a_batch_changes_no_result():
    stage = Stage()
    batch, delivery = stage.sent()
    assert stage.results.end_at(batch, Moment.EXPIRED, "late", in_flight=True)
    stage.heard.clear()

    stage.answer(batch, base_offset=5)

    assert delivery.exception().outcome is Outcome.UNKNOWN
    assert (stage.metrics.records_acked, stage.metrics.records_unknown) == (0, 1)
    assert stage.heard == []
    assert batch.queue.sequence.confirmed_on == (stage.identity, 0), "the broker has it"
    assert not batch.queue.sequence.has_gap


async def test_the_end_of_a_disturbance_is_logged(caplog):
    stage = Stage()
    batch, _ = stage.sent()
    with caplog.at_level(logging.INFO):
        stage.answer(batch, error_code=Code.NOT_ENOUGH_REPLICAS)
        stage.send_again(batch)
        stage.answer(batch, base_offset=0)
    [began, ended] = log_lines(caplog)
    assert "orders-0: broker" not in began
    assert "NOT_ENOUGH_REPLICAS" in began
    assert "batches are accepted again; NOT_ENOUGH_REPLICAS lasted" in ended


@pytest.mark.parametrize("way", ["short", "full"])
async def test_a_repetition_of_a_participant_is_not_a_success(way):
    stage = Stage(version=2, is_participant=True)
    batch, delivery = stage.sent()

    if way == "short":
        stage.results.apply_success([batch], Appended([(0, 5, 77, 1)], 0), stage.now)
    else:
        stage.answer(batch, base_offset=5, log_append_time_ms=77)

    error = delivery.exception()
    assert error.outcome is Outcome.UNKNOWN
    assert "another producer has written to the partition" in str(error)
    assert stage.transaction.state is TransactionState.FAILED_PARTICIPANT


@pytest.mark.parametrize("way", ["short", "full"])
async def test_a_participant_unknown_to_the_log_succeeds(way):
    stage = Stage(version=2, is_participant=True, **ONE_BATCH_PER_RECORD)
    first, delivery = stage.sent()
    if way == "short":
        stage.results.apply_success([first], Appended([(0, 5, -1, 1)], 0), stage.now)
    else:
        stage.answer(first, base_offset=5, log_start_offset=1)
    assert (delivery.result().offset, delivery.result().log_start_offset) == (5, 1)

    later, delivery = stage.sent()
    stage.answer(later, base_offset=6, log_append_time_ms=0)
    assert delivery.result().offset == 6, "only the first batch of a participant can be a repetition"


async def test_a_timestamp_of_zero_is_valid():
    stage = Stage(version=2, is_participant=True)
    batch, delivery = stage.sent()
    stage.answer(batch, base_offset=5, log_append_time_ms=0)
    assert delivery.exception().outcome is Outcome.UNKNOWN


async def test_an_acknowledgement_of_another_epoch_does_not_make_a_repetition_a_success():
    stage = Stage(version=2, is_participant=True)
    batch, delivery = stage.sent()
    batch.queue.sequence.confirmed_on = (ProducerIdentity(4711, 2, is_transactional=True), 0)
    stage.answer(batch, error_code=Code.DUPLICATE_SEQUENCE_NUMBER)
    assert delivery.exception().outcome is Outcome.UNKNOWN


# ---------------------------------------------------------------------------------------------- invalid responses


async def test_topics_are_found_by_their_ids():
    stage = Stage()
    batch, delivery = stage.sent()
    answer = PartitionAnswer(index=0, base_offset=5)
    response = ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(topic_id=UUID(int=TOPIC_ID), partition_responses=[answer])
        ]
    )
    stage.apply([batch], response)
    assert delivery.result().offset == 5
    assert stage.calls == []


async def test_an_answer_for_a_foreign_partition_ends_the_connection_and_the_other_answers_count():
    stage = Stage()
    batch, delivery = stage.sent()
    answers = [PartitionAnswer(index=7, base_offset=1), PartitionAnswer(index=0, base_offset=5)]
    response = ProduceResponse(
        responses=[ProduceResponse.TopicProduceResponse(name="orders", partition_responses=answers)]
    )

    stage.apply([batch], response)

    assert delivery.result().offset == 5
    [(_, node_id, violation)] = stage.calls
    assert node_id == 0
    assert type(violation) is ForeignPartitionError
    assert "broker 0 answered for partition orders-7" in str(violation)


@pytest.mark.parametrize(("missing", "words"), [(1, "for a partition in"), (2, "for 2 partitions in")])
async def test_partitions_that_are_missing_from_an_answer_are_in_doubt_and_sent_again(missing, words):
    stage = Stage()
    batches = [stage.sent(partition)[0] for partition in range(2)]

    answers = [PartitionAnswer(index=batch.queue.partition, base_offset=5) for batch in batches[missing:]]
    response = ProduceResponse(
        responses=[ProduceResponse.TopicProduceResponse(name="orders", partition_responses=answers)]
    )
    stage.apply(batches, response)

    [(_, _, violation)] = stage.named("disconnect")
    assert type(violation) is MissingPartitionError
    assert words in str(violation)
    for batch in batches[:missing]:
        assert batch.doubted_in == {TOPIC_ID}
        assert batch.last_error is violation
        assert stage.retry_at(batch) == pytest.approx(0.1)
    assert stage.metrics.errors == {"MissingPartitionError": missing}
    assert stage.metrics.records_acked == 2 - missing


# ---------------------------------------------------------------------------------------------- retriable errors


@pytest.mark.parametrize(
    ("code", "is_in_doubt"),
    [
        (Code.NOT_ENOUGH_REPLICAS, False),
        (Code.COORDINATOR_LOAD_IN_PROGRESS, False),
        (Code.REQUEST_TIMED_OUT, True),
        (Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
    ],
)
async def test_a_passing_error_is_retried_after_the_back_off(code, is_in_doubt):
    stage = Stage()
    batch, delivery = stage.sent()

    stage.answer(batch, error_code=code, error_message="wait")

    assert stage.retry_at(batch) == pytest.approx(0.1)
    assert not delivery.done()
    assert stage.metrics.errors == {code.name: 1}
    assert type(batch.last_error) is BrokerError
    assert (batch.last_error.code, batch.last_error.name) == (code, code.name)
    assert str(batch.last_error) == f"{code.name}: wait"
    assert (batch.maybe_persisted, batch.doubted_in) == (is_in_doubt, {TOPIC_ID} if is_in_doubt else set())
    assert (batch.identity, batch.first_sequence) == (stage.identity, 0)
    [event] = stage.heard
    assert event == ("me", "orders", 0, 1, 1, pytest.approx(0.1), batch.last_error)
    assert not stage.transaction.epoch_is_spent


async def test_the_back_off_grows_with_the_attempts_and_has_a_limit():
    stage = Stage(retry_backoff_max_ms=300)
    batch, _ = stage.sent()
    pauses = []
    for _ in range(3):
        stage.answer(batch, error_code=Code.NOT_ENOUGH_REPLICAS)
        pauses.append(stage.retry_at(batch))
        stage.send_again(batch)
    assert pauses == pytest.approx([0.1, 0.2, 0.3])


async def test_the_log_names_the_first_retry_and_its_error(caplog):
    stage = Stage()
    batch, _ = stage.sent()
    other, _ = stage.sent(1)
    stage.answer(batch, error_code=Code.NOT_ENOUGH_REPLICAS)
    stage.fail(other, BrokerConnectionError("the connection ended"))
    [by_code, by_class] = log_lines(caplog)
    assert "orders-0: NOT_ENOUGH_REPLICAS; the batch will be sent again in 0.1 s" in by_code
    assert "orders-1: the connection ended; the batch will be sent again in 0.1 s" in by_class


@pytest.mark.parametrize(
    ("code", "is_in_doubt"),
    [(Code.NOT_LEADER_OR_FOLLOWER, True), (Code.LEADER_NOT_AVAILABLE, False)],
)
async def test_a_leader_that_has_moved_is_sent_the_batch_without_a_pause(code, is_in_doubt):
    stage = Stage()
    batch, _ = stage.sent()
    stage.metadata.cluster = cluster_of(topic_info((1, 0)))

    stage.answer(batch, error_code=code)

    assert stage.retry_at(batch) == pytest.approx(0)
    assert stage.calls == []
    assert batch.maybe_persisted is is_in_doubt


@pytest.mark.parametrize("leader", [0, -1, None], ids=["the same", "none", "no topic"])
async def test_without_another_leader_the_batch_waits_and_metadata_is_refreshed(leader):
    stage = Stage()
    batch, _ = stage.sent()
    stage.metadata.cluster = cluster_of(*([] if leader is None else [topic_info((leader, 0))]))

    stage.answer(batch, error_code=Code.NOT_LEADER_OR_FOLLOWER)

    assert stage.retry_at(batch) == pytest.approx(0.1)
    assert stage.calls == [("doubt_leaders", [("orders", 0)])]


def named_leader(leader: int) -> ProduceResponse.LeaderIdAndEpoch:
    return ProduceResponse.LeaderIdAndEpoch(leader_id=leader, leader_epoch=8)


@pytest.mark.parametrize("leader", [-1, 0, 1])
async def test_the_leader_that_the_answer_names_is_passed_to_the_metadata(leader):
    stage = Stage()
    batch, _ = stage.sent(broker=2)
    endpoints = [ProduceResponse.NodeEndpoint(node_id=leader, host="h", port=9092)]
    response = ProduceResponse(node_endpoints=endpoints)

    stage.answer(
        batch,
        error_code=Code.NOT_LEADER_OR_FOLLOWER,
        current_leader=named_leader(leader),
        response=response,
    )

    hints = [LeaderHint("orders", 0, leader, 8)]
    assert stage.calls == ([("apply_leader_hints", hints, endpoints)] if leader >= 0 else [])


@pytest.mark.parametrize(
    ("leader", "expected"),
    [
        (1, ("apply_leader_hints", [LeaderHint("orders", 0, 1, 8), LeaderHint("orders", 1, 1, 8)], [])),
        (-1, ("doubt_leaders", [("orders", 0), ("orders", 1)])),
    ],
)
async def test_what_a_response_says_of_all_its_leaders_changes_the_metadata_once(leader, expected):
    """Half of a large cluster's partitions may move at once, and each new snapshot costs work for every topic."""
    stage = Stage()
    batches = [stage.sent(partition)[0] for partition in (0, 1)]

    stage.answer(*batches, error_code=Code.NOT_LEADER_OR_FOLLOWER, current_leader=named_leader(leader))

    assert stage.calls[0] == expected
    assert [call[0] for call in stage.calls] == [expected[0]] + ["doubt_leaders"] * (leader >= 0)


async def test_a_leader_of_a_partition_that_was_not_asked_about_is_ignored():
    stage = Stage()
    batch, _ = stage.sent(broker=2)
    answers = [
        PartitionAnswer(index=index, error_code=Code.NOT_LEADER_OR_FOLLOWER, current_leader=named_leader(1))
        for index in (1, 0)
    ]
    topics = [ProduceResponse.TopicProduceResponse(name="orders", partition_responses=answers)]

    stage.apply([batch], ProduceResponse(responses=topics))

    assert stage.named("apply_leader_hints") == [("apply_leader_hints", [LeaderHint("orders", 0, 1, 8)], [])]


async def test_an_unsupported_version_is_negotiated_again_once(caplog):
    stage = Stage()
    batch, delivery = stage.sent(broker=2)
    stage.answer(batch, error_code=Code.UNSUPPORTED_VERSION)
    assert stage.calls == [("renegotiate", 2)]
    assert stage.retry_at(batch) == pytest.approx(0.1)
    assert "UNSUPPORTED_VERSION; the broker is asked for its supported versions again" in caplog.text

    stage.send_again(batch, 2)
    stage.answer(batch, error_code=Code.UNSUPPORTED_VERSION)
    assert delivery.exception().outcome is Outcome.NOT_PERSISTED
    assert len(stage.calls) == 1


async def test_a_batch_that_arrives_damaged_is_sent_three_times():
    stage = Stage()
    batch, delivery = stage.sent()
    for _ in range(2):
        stage.answer(batch, error_code=Code.CORRUPT_MESSAGE)
        assert not delivery.done()
        stage.send_again(batch)
    stage.answer(batch, error_code=Code.CORRUPT_MESSAGE)
    error = delivery.exception()
    assert (error.attempts, error.outcome) == (3, Outcome.NOT_PERSISTED)
    assert "damaged" not in str(error)


async def test_bytes_that_were_damaged_in_memory_are_not_sent_again():
    stage = Stage()
    batch, delivery = stage.sent()
    header, payload = batch.segments
    batch.segments = (header, bytes(payload[:-1]) + b"?")
    stage.answer(batch, error_code=Code.CORRUPT_MESSAGE)
    assert "no longer match their checksum" in str(delivery.exception())


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize(
    ("code", "message"),
    [(Code.CONCURRENT_TRANSACTIONS, None), (Code.NOT_ENOUGH_REPLICAS, f"{NOT_VERIFIED} orders-0")],
)
async def test_an_error_that_passes_within_milliseconds_is_retried_after_a_short_random_pause(
    code, message, attempts
):
    stage = Stage(version=2)
    batch, _ = stage.sent()
    batch.attempts = attempts
    stage.answer(batch, error_code=code, error_message=message)
    assert stage.retry_at(batch) == pytest.approx(FAST_RETRY[0] * 2 ** (attempts - 1) / 2)
    assert stage.heard == []


@pytest.mark.parametrize("message", [None, "", "too few", f"no: {NOT_VERIFIED}"])
async def test_too_few_replicas_are_not_mistaken_for_a_failed_verification(message):
    stage = Stage(version=2)
    batch, _ = stage.sent()
    stage.answer(batch, error_code=Code.NOT_ENOUGH_REPLICAS, error_message=message)
    assert stage.retry_at(batch) == pytest.approx(0.1)


# ------------------------------------------------------------------------------------ state that a broker has lost


async def test_a_batch_behind_another_waits_for_it_if_the_broker_misses_a_sequence():
    stage = Stage(**ONE_BATCH_PER_RECORD)
    first, _ = stage.sent()
    second, delivery = stage.sent()
    first.queue.in_flight += (first,)

    stage.answer(second, error_code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER)

    assert stage.retry_at(second) == pytest.approx(0)
    assert (second.identity, second.first_sequence) == (stage.identity, 1)
    assert not delivery.done()
    assert stage.heard == []


@pytest.mark.parametrize("case", ["behind", "without numbers", "in its queue again"])
async def test_a_rejected_batch_waits_only_for_numbered_batches_before_it(case):
    stage = Stage(**ONE_BATCH_PER_RECORD)
    if case == "behind":
        batch, _ = stage.sent()
        other, _ = stage.sent()
        other.queue.in_flight += (other,)
    else:
        other, _ = stage.sent()
        batch, _ = stage.sent()
        other.mark_returned()
        stage.accumulator.requeue(other, 0.0)
        if case == "without numbers":
            other.number(None, -1)

    stage.answer(batch, error_code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER)

    assert batch.is_numbered is (case == "in its queue again"), (
        "in the other cases it is the first batch, and gets new numbers"
    )


@pytest.mark.parametrize(
    "code",
    [Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID, Code.INVALID_PRODUCER_ID_MAPPING],
)
async def test_the_first_batch_that_a_broker_does_not_know_gets_new_numbers_under_a_new_epoch(code, caplog):
    stage = Stage()
    batch, delivery = stage.sent()
    stage.answer(batch, error_code=code)
    assert not batch.is_numbered
    assert batch.queue.sequence.has_gap
    assert stage.retry_at(batch) == pytest.approx(0.1)
    assert not delivery.done()
    assert f"{code.name}; the partition uses a new producer epoch" in caplog.text


async def test_a_batch_in_doubt_that_the_broker_does_not_know_fails_as_unknown():
    stage = Stage()
    batch, delivery = stage.sent()
    batch.doubt(TOPIC_ID)
    stage.answer(batch, error_code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert delivery.exception().outcome is Outcome.UNKNOWN
    assert batch.queue.sequence.has_gap


async def test_without_idempotence_lost_state_of_a_producer_is_final():
    stage = Stage(is_idempotent=False, enable_idempotence=False)
    batch, delivery = stage.sent()
    stage.answer(batch, error_code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert delivery.exception().outcome is Outcome.NOT_PERSISTED


async def test_a_later_epoch_that_is_not_ours_requires_a_new_producer_id(caplog):
    stage = Stage()
    batch, _ = stage.sent()
    stage.answer(batch, error_code=Code.INVALID_PRODUCER_EPOCH)
    assert stage.idempotence.identity is None
    assert not batch.is_numbered
    assert batch.queue.sequence.has_gap
    assert stage.retry_at(batch) == pytest.approx(0.1)
    assert "another producer uses the same producer id, so this producer requests a new one" in caplog.text


async def test_a_later_epoch_that_is_ours_only_requires_new_numbers():
    stage = Stage()
    batch, _ = stage.sent()
    newer = ProducerIdentity(4711, 4)
    stage.idempotence.use(newer)
    stage.answer(batch, error_code=Code.INVALID_PRODUCER_EPOCH)
    assert stage.idempotence.identity == newer
    assert not batch.is_numbered


async def test_a_broker_that_forgot_an_acknowledged_batch_may_have_lost_data(caplog):
    stage = Stage(**ONE_BATCH_PER_RECORD)
    first, _ = stage.sent()
    stage.answer(first, base_offset=0)
    second, _ = stage.sent()
    stage.answer(second, error_code=Code.UNKNOWN_PRODUCER_ID)
    second.queue.sequence.adopt(ProducerIdentity(4711, 4))
    second.number(ProducerIdentity(4711, 4), 0)
    stage.send_again(second)
    stage.answer(second, base_offset=1)
    assert stage.metrics.data_losses == 1
    assert "may have been lost (orders-0 up to offset 0)" in caplog.text


async def test_a_batch_that_only_waits_for_the_one_before_it_is_not_a_loss_of_data():
    stage = Stage(**ONE_BATCH_PER_RECORD)
    acknowledged, _ = stage.sent()
    stage.answer(acknowledged, base_offset=0)
    first, _ = stage.sent()
    second, _ = stage.sent()
    first.queue.in_flight += (first,)
    stage.answer(second, error_code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    note_answered(first)
    stage.answer(first, base_offset=1)
    assert stage.metrics.data_losses == 0


# --------------------------------------------------------------------------------------- parts of a batch


@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_a_batch_that_is_too_large_is_sent_in_two_halves(is_idempotent, caplog):
    stage = Stage(is_idempotent=is_idempotent, enable_idempotence=is_idempotent)
    batch, _ = stage.sent(records=5)

    with caplog.at_level(logging.INFO):
        stage.answer(batch, error_code=Code.MESSAGE_TOO_LARGE)

    first, second = batch.queue.batches
    assert (first.record_count, second.record_count) == (2, 3)
    expected = (stage.identity, 0, stage.identity, 2) if is_idempotent else (None, -1, None, -1)
    assert (first.identity, first.first_sequence, second.identity, second.first_sequence) == expected
    assert stage.metrics.splits == 1
    assert list(stage.accumulator.incomplete) == [first, second]
    assert batch.queue.retry_at <= stage.now
    assert "is too large for broker 0 and is sent in two halves (orders-0)" in caplog.text


async def test_the_halves_of_a_batch_have_its_deliveries_in_order():
    stage = Stage()
    stage.sent(1)
    deliveries = [stage.bench.send() for _ in range(3)]
    batch = deliveries[0].batch
    stage.accumulator.close_first(batch.queue)
    stage.send_again(batch)
    stage.answer(batch, error_code=Code.RECORD_LIST_TOO_LARGE)
    for offset, part in zip((10, 20), list(batch.queue.batches), strict=True):
        stage.send_again(part)
        stage.answer(part, base_offset=offset)
    assert [delivery.result().offset for delivery in deliveries] == [10, 20, 21]


@pytest.mark.parametrize("case", ["one record", "in doubt"])
async def test_a_batch_that_cannot_be_split_fails(case):
    stage = Stage()
    batch, delivery = stage.sent(records=1 if case == "one record" else 2)
    if case == "in doubt":
        batch.doubt(TOPIC_ID)
    stage.answer(batch, error_code=Code.MESSAGE_TOO_LARGE)
    expected = Outcome.NOT_PERSISTED if case == "one record" else Outcome.UNKNOWN
    assert delivery.exception().outcome is expected


async def test_records_that_the_broker_names_fail_alone_and_the_others_are_sent_without_them(caplog):
    stage = Stage()
    deliveries = [stage.bench.send() for _ in range(4)]
    batch = deliveries[0].batch
    queue = batch.queue
    stage.accumulator.close_first(queue)
    stage.accumulator.take(queue)
    queue.sequence = stage.idempotence.sequence_of(None, UUID(int=TOPIC_ID), 0)
    queue.sequence.adopt(stage.identity)
    batch.number(stage.identity, 0)
    batch.mark_sent(0)

    stage.answer(
        batch,
        error_code=Code.INVALID_RECORD,
        error_message="bad",
        record_errors=[
            NamedRecord(batch_index=0, batch_index_error_message="no key"),
            NamedRecord(batch_index=3),
            NamedRecord(batch_index=4),
            NamedRecord(batch_index=-1),
        ],
    )

    [rest] = queue.batches
    assert rest.record_count == 2
    assert not rest.is_numbered
    assert queue.sequence.has_gap
    assert queue.retry_at <= stage.now
    topic = stage.metrics.topics["orders"]
    assert (stage.metrics.records_failed, topic.records_failed) == (2, 2)
    assert "INVALID_RECORD: bad (2 of 4 records); the others are sent again" in caplog.text
    stage.accumulator.take(queue)
    rest.mark_sent(0)
    stage.answer(rest, base_offset=10)
    assert [delivery.result().offset for delivery in deliveries[1:3]] == [10, 11]
    errors = [deliveries[number].exception() for number in (0, 3)]
    assert "1 record for orders-0 failed" in str(errors[0])
    assert "rejected this record with INVALID_RECORD: no key" in str(errors[0])
    assert "rejected this record with INVALID_RECORD: bad" in str(errors[1])
    assert stage.metrics.records_acked == 2


async def test_records_that_the_broker_names_are_counted_without_those_that_were_left_out():
    stage = Stage()
    deliveries = [stage.bench.send() for _ in range(4)]
    batch = deliveries[0].batch
    stage.accumulator.withdraw(deliveries[1], TimeoutError("its own"))
    stage.accumulator.close_first(batch.queue)
    stage.accumulator.take(batch.queue)
    batch.queue.sequence = stage.idempotence.sequence_of(None, UUID(int=TOPIC_ID), 0)
    batch.queue.sequence.adopt(stage.identity)
    batch.number(stage.identity, 0)
    batch.mark_sent(0)

    stage.answer(
        batch, error_code=Code.INVALID_RECORD, record_errors=[NamedRecord(batch_index=1)], error_message="bad"
    )

    [rest] = batch.queue.batches
    stage.send_again(rest)
    stage.answer(rest, base_offset=10)
    assert [deliveries[number].result().offset for number in (0, 3)] == [10, 11]
    assert str(deliveries[1].exception()) == "its own"
    assert "INVALID_RECORD: bad" in str(deliveries[2].exception())


@pytest.mark.parametrize("named", [[], [0, 1]], ids=["none", "all"])
async def test_a_batch_fails_as_a_whole_if_none_or_all_of_its_records_are_named(named):
    stage = Stage()
    batch, delivery = stage.sent(records=2)
    records = [NamedRecord(batch_index=index, batch_index_error_message="no key") for index in named]
    stage.answer(batch, error_code=Code.INVALID_RECORD, record_errors=records)
    assert delivery.exception().outcome is Outcome.NOT_PERSISTED
    assert ("no key" in str(delivery.exception())) is bool(named)
    assert stage.metrics.records_failed == 2


async def test_an_answer_without_a_list_of_records_names_none():
    stage = Stage()
    batch, delivery = stage.sent(records=2)
    stage.answer(batch, error_code=Code.INVALID_RECORD, record_errors=None)
    assert delivery.exception().outcome is Outcome.NOT_PERSISTED


async def test_a_record_that_is_named_twice_has_the_first_reason():
    stage = Stage()
    batch, delivery = stage.sent(records=2)
    records = [NamedRecord(batch_index=0, batch_index_error_message=text) for text in ("one", "two")]
    stage.answer(batch, error_code=Code.INVALID_RECORD, record_errors=records)
    [rest] = batch.queue.batches
    stage.send_again(rest)
    stage.answer(rest, base_offset=0)
    assert "INVALID_RECORD: one" in str(delivery.exception())


# ------------------------------------------------------------------------------------------------ final errors


async def test_a_final_error_fails_all_records_of_the_batch():
    stage = Stage()
    batch, delivery = stage.sent(records=2)
    stage.now += 1

    stage.answer(batch, error_code=Code.TOPIC_AUTHORIZATION_FAILED)

    error = delivery.exception()
    assert type(error) is DeliveryError
    assert "2 records for orders-0 failed" in str(error)
    assert "broker 0 rejected the records with TOPIC_AUTHORIZATION_FAILED; grant WRITE on the topic" in str(
        error
    )
    assert (error.requires_abort, error.requires_reinit) == (False, False)
    assert error.elapsed == pytest.approx(0, abs=0.5)
    assert stage.is_over(batch)
    assert batch.queue.sequence.has_gap
    topic = stage.metrics.topics["orders"]
    assert (stage.metrics.records_failed, topic.records_failed) == (2, 2)
    assert (stage.metrics.records_unknown, topic.records_unknown) == (0, 0)
    assert stage.metrics.time_to_failure.count == 2
    assert stage.metrics.time_to_failure.maximum < 0.5
    [event] = stage.heard
    assert (event.records, event.base_offset, event.outcome) == (2, None, Outcome.NOT_PERSISTED)
    assert str(event.error) == str(error)
    assert event.seconds == pytest.approx(0, abs=0.5)


async def test_a_record_that_ended_before_a_final_error_keeps_its_own_error():
    stage = Stage()
    batch, delivery = stage.sent(records=2)
    second = batch.delivery(1)
    stage.accumulator.end_record(delivery, TimeoutError("its own"))

    stage.answer(batch, error_code=Code.TOPIC_AUTHORIZATION_FAILED)

    assert str(delivery.exception()) == "its own"
    assert "TOPIC_AUTHORIZATION_FAILED" in str(second.exception())


async def test_an_unknown_error_leaves_its_records_in_doubt():
    stage = Stage()
    batch, delivery = stage.sent(records=2)
    stage.answer(batch, error_code=9999)
    assert delivery.exception().outcome is Outcome.UNKNOWN
    topic = stage.metrics.topics["orders"]
    assert (stage.metrics.records_unknown, topic.records_unknown) == (2, 2)
    assert (stage.metrics.records_failed, topic.records_failed) == (0, 0)
    assert batch.doubted_in == {TOPIC_ID}


@pytest.mark.parametrize("code", [Code.NOT_ENOUGH_REPLICAS, Code.TOPIC_AUTHORIZATION_FAILED])
async def test_an_error_that_comes_after_the_end_of_a_batch_is_only_counted(code):
    stage = Stage()
    batch, delivery = stage.sent()
    stage.results.end_at(batch, Moment.EXPIRED, "late", in_flight=True)
    error = delivery.exception()
    stage.heard.clear()

    stage.answer(batch, error_code=code)

    assert stage.metrics.errors == {code.name: 1}
    assert (stage.metrics.records_unknown, stage.metrics.records_failed) == (1, 0)
    assert str(delivery.exception()) == str(error)
    assert stage.heard == []
    assert not batch.queue.batches


@pytest.mark.parametrize(
    ("version", "code", "state", "kind"),
    [
        (1, Code.TOPIC_AUTHORIZATION_FAILED, TransactionState.ABORT_REQUIRED, None),
        (2, Code.INVALID_PRODUCER_EPOCH, TransactionState.ABORT_REQUIRED, None),
        (1, Code.INVALID_PRODUCER_EPOCH, TransactionState.REINIT_REQUIRED, ProducerFencedError),
        (2, Code.PRODUCER_FENCED, TransactionState.REINIT_REQUIRED, ProducerFencedError),
        (2, Code.INVALID_PRODUCER_ID_MAPPING, TransactionState.REINIT_REQUIRED, TransactionReinitError),
    ],
)
async def test_a_final_error_says_how_its_transaction_can_continue(version, code, state, kind):
    stage = Stage(version=version)
    batch, delivery = stage.sent()

    stage.answer(batch, error_code=code)

    error = delivery.exception()
    requires_reinit = state is TransactionState.REINIT_REQUIRED
    assert stage.transaction.state is state
    assert (error.requires_abort, error.requires_reinit) == (not requires_reinit, requires_reinit)
    if kind is not None:
        assert type(stage.transaction.error) is kind
        assert code.name in str(stage.transaction.error)
    assert stage.transaction.epoch_is_spent


async def test_a_failed_batch_of_an_earlier_epoch_does_not_affect_the_transaction():
    stage = Stage(version=2)
    batch, _ = stage.sent()
    stage.idempotence.use(ProducerIdentity(4711, 4, is_transactional=True))
    stage.answer(batch, error_code=Code.TOPIC_AUTHORIZATION_FAILED)
    assert stage.transaction.state is TransactionState.IN_TRANSACTION


async def test_a_batch_without_numbers_that_fails_ends_the_transaction_and_spends_no_epoch():
    stage = Stage(version=2)
    sent, _ = stage.sent()
    stage.answer(sent, base_offset=0)
    batch, _ = stage.waiting()
    stage.accumulator.forget(batch)
    stage.results.give_up(batch, "no")
    assert stage.transaction.state is TransactionState.ABORT_REQUIRED
    assert not stage.transaction.epoch_is_spent
    assert not batch.queue.sequence.has_gap


# ------------------------------------------------------------------------------------------------- no answer


@pytest.mark.parametrize(
    "error", [BrokerConnectionError("lost"), RequestTimedOutError("late")], ids=["lost", "late"]
)
async def test_a_request_without_an_answer_is_in_doubt_and_sent_again(error):
    stage = Stage()
    batch, delivery = stage.sent()
    error.written = True

    stage.fail(batch, error, NAMED)

    assert stage.retry_at(batch) == pytest.approx(0.1)
    assert batch.doubted_in == {NAMED}
    assert batch.last_error is error
    assert stage.metrics.errors == {type(error).__name__: 1}
    assert stage.transaction.epoch_is_spent
    assert stage.calls == [("request_update",)]
    assert not delivery.done()


async def test_a_request_that_was_not_written_is_not_in_doubt():
    stage = Stage()
    batch, _ = stage.sent()
    error = BrokerConnectionError("lost")
    error.written = False
    stage.fail(batch, error)
    assert (batch.maybe_persisted, batch.doubted_in) == (False, set())
    assert not stage.transaction.epoch_is_spent
    assert stage.retry_at(batch) == pytest.approx(0.1)


async def test_a_request_that_no_version_can_carry_is_final():
    stage = Stage()
    batch, delivery = stage.sent()
    stage.fail(batch, UnsupportedVersionError("too old"))
    assert delivery.exception().outcome is Outcome.NOT_PERSISTED
    assert "too old" in str(delivery.exception())
    assert stage.calls == []


async def test_without_acks_a_lost_connection_is_final():
    stage = Stage(is_idempotent=False, acks=0)
    batch, delivery = stage.sent()
    error = BrokerConnectionError("lost")
    error.written = True
    stage.fail(batch, error)
    assert delivery.exception().outcome is Outcome.UNKNOWN
    assert not batch.queue.batches
    assert stage.calls == []


async def test_a_lost_connection_after_the_end_of_a_batch_is_only_counted():
    stage = Stage()
    batch, _ = stage.sent()
    stage.results.end_at(batch, Moment.EXPIRED, "late", in_flight=True)
    error = BrokerConnectionError("lost")
    stage.fail(batch, error)
    assert stage.metrics.errors == {"BrokerConnectionError": 1}
    assert batch.last_error is error
    assert not batch.queue.batches
    assert stage.calls == []


# ------------------------------------------------------------------------------------- without an answer


@pytest.mark.parametrize(
    ("case", "outcome"),
    [("waits", Outcome.NOT_PERSISTED), ("in doubt", Outcome.UNKNOWN), ("in flight", Outcome.UNKNOWN)],
)
async def test_an_expired_batch_fails_with_an_honest_outcome(case, outcome):
    stage = Stage()
    batch, delivery = stage.sent() if case == "in flight" else stage.waiting()
    if case == "in doubt":
        batch.doubt(TOPIC_ID)

    assert stage.results.end_at(batch, Moment.EXPIRED, "why", in_flight=case == "in flight")

    assert type(delivery.exception()) is DeliveryTimeoutError
    assert delivery.exception().outcome is outcome
    assert "why" in str(delivery.exception())
    assert not batch.queue.batches
    assert stage.is_over(batch)


async def test_an_error_that_expires_a_batch_is_named_without_another_reason():
    stage = Stage()
    batch, delivery = stage.waiting()
    batch.last_error = BrokerConnectionError("lost")
    stage.results.end_at(batch, Moment.EXPIRED, in_flight=False)
    assert "delivery timed out: the last error was: BrokerConnectionError('lost'" in str(delivery.exception())


@pytest.mark.parametrize("case", ["in doubt", "in the log of a former topic", "in flight"])
async def test_endless_retries_keep_batches_that_may_be_in_a_log(case):
    stage = Stage(enable_endless_retries=True)
    batch, delivery = stage.sent() if case == "in flight" else stage.waiting()
    if case != "in flight":
        batch.doubt(TOPIC_ID)
        batch.maybe_persisted = case == "in doubt"

    assert not stage.results.end_at(batch, Moment.EXPIRED, in_flight=case == "in flight")

    assert not delivery.done()
    assert batch.moments == (Moment.EXPIRED,)


async def test_endless_retries_expire_batches_that_cannot_be_in_a_log():
    stage = Stage(enable_endless_retries=True)
    batch, delivery = stage.waiting()
    assert stage.results.end_at(batch, Moment.EXPIRED, in_flight=False)
    assert delivery.exception().outcome is Outcome.NOT_PERSISTED


async def test_a_batch_that_expired_in_flight_ends_with_its_answer_unless_it_is_a_success():
    stage = Stage(enable_endless_retries=True)
    batch, delivery = stage.sent()
    stage.results.end_at(batch, Moment.EXPIRED, in_flight=True)

    stage.answer(batch, error_code=Code.NOT_ENOUGH_REPLICAS)

    assert type(delivery.exception()) is DeliveryTimeoutError
    assert delivery.exception().outcome is Outcome.NOT_PERSISTED
    assert "the last error was" in str(delivery.exception())
    assert not batch.queue.batches
    assert stage.heard[0].attempts == 1


async def test_a_batch_that_expired_in_flight_and_lost_its_connection_is_kept_by_endless_retries():
    stage = Stage(enable_endless_retries=True)
    batch, delivery = stage.sent()
    stage.results.end_at(batch, Moment.EXPIRED, in_flight=True)
    error = BrokerConnectionError("lost")
    error.written = True
    stage.fail(batch, error)
    assert not delivery.done(), "it may be in the log"
    assert stage.retry_at(batch) == pytest.approx(0.1)


@pytest.mark.parametrize("moments", [(Moment.BEHIND, Moment.EXPIRED), (Moment.EXPIRED, Moment.BEHIND)])
async def test_a_batch_behind_a_failed_one_ends_although_endless_retries_would_keep_it(moments):
    stage = Stage(enable_endless_retries=True, enable_gapless_order=True)
    batch, delivery = stage.sent()
    for moment in moments:
        assert not stage.results.end_at(batch, moment, in_flight=True)
    error = BrokerConnectionError("lost")
    error.written = True

    stage.fail(batch, error)

    assert delivery.exception().outcome is Outcome.UNKNOWN
    assert Moment.BEHIND.value in str(delivery.exception())
    assert not batch.queue.batches


async def test_a_batch_that_expired_in_flight_and_was_not_written_ends():
    stage = Stage(enable_endless_retries=True)
    batch, delivery = stage.sent()
    stage.results.end_at(batch, Moment.EXPIRED, in_flight=True)
    error = BrokerConnectionError("lost")
    error.written = False
    stage.fail(batch, error)
    assert delivery.exception().outcome is Outcome.NOT_PERSISTED


# ------------------------------------------------------------------------------------------------ gapless order


async def test_in_gapless_order_a_failure_also_fails_the_batches_behind_it():
    stage = Stage(enable_gapless_order=True, **ONE_BATCH_PER_RECORD)
    first, early = stage.sent()
    failed, failure = stage.sent()
    in_flight, flying = stage.sent()
    doubtful, doubt = stage.waiting()
    doubtful.doubt(TOPIC_ID)
    _, late = stage.waiting()
    _, elsewhere = stage.waiting(1)
    for batch in (first, in_flight):
        batch.queue.in_flight += (batch,)

    stage.answer(failed, error_code=Code.TOPIC_AUTHORIZATION_FAILED)

    assert failure.exception().outcome is Outcome.NOT_PERSISTED
    assert doubt.exception().outcome is Outcome.UNKNOWN
    assert late.exception().outcome is Outcome.NOT_PERSISTED
    assert type(late.exception()) is DeliveryError
    assert str(Moment.BEHIND.value) in str(late.exception())
    assert not early.done(), "it is before the failed one"
    assert not elsewhere.done()
    assert not flying.done(), "its answer decides about it"
    assert in_flight.moments == (Moment.BEHIND,)
    stage.answer(in_flight, error_code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert flying.exception().outcome is Outcome.NOT_PERSISTED
    assert Moment.BEHIND.value in str(flying.exception())


async def test_each_kind_of_failure_also_fails_the_batches_behind_it():
    stage = Stage(enable_gapless_order=True, **ONE_BATCH_PER_RECORD)
    for _ in range(2):
        failed, _ = stage.sent()
        _, late = stage.waiting()
        stage.answer(failed, error_code=Code.TOPIC_AUTHORIZATION_FAILED)
        assert late.exception().outcome is Outcome.NOT_PERSISTED


async def test_without_gapless_order_a_failure_affects_no_other_batch():
    stage = Stage(**ONE_BATCH_PER_RECORD)
    failed, _ = stage.sent()
    _, late = stage.waiting()
    stage.answer(failed, error_code=Code.TOPIC_AUTHORIZATION_FAILED)
    assert not late.done()


async def test_in_gapless_order_named_records_are_not_left_out():
    stage = Stage(enable_gapless_order=True)
    batch, delivery = stage.sent(records=2)
    stage.answer(batch, error_code=Code.INVALID_RECORD, record_errors=[NamedRecord(batch_index=1)])
    assert delivery.exception().outcome is Outcome.NOT_PERSISTED
    assert not batch.queue.batches


async def test_in_gapless_order_a_batch_that_has_ended_and_waits_for_its_answer_is_left_alone():
    stage = Stage(enable_gapless_order=True, **ONE_BATCH_PER_RECORD)
    failed, _ = stage.sent()
    ended, delivery = stage.sent()
    ended.queue.in_flight += (ended,)
    ended.give_up(DeliveryTimeoutError("late"))
    stage.accumulator.release(ended)

    stage.answer(failed, error_code=Code.TOPIC_AUTHORIZATION_FAILED)

    assert str(delivery.exception()) == "late"
    assert ended.moments == ()
