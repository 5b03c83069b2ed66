"""The states of a batch, its bytes on the wire, and the batches that users build."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.errors import DeliveryError, IllegalStateError, InvalidRecordError
from aioproducer.protocol.compression import Codec, compressor
from aioproducer.protocol.recordbatch import check_crc, read_header, read_records
from aioproducer.records._record_path import HEADER_SIZE, BatchState, PartitionQueue
from aioproducer.records.batch import BatchBuilder, FlushWait, ProducerBatch
from aioproducer.records.idempotence import ProducerIdentity
from aioproducer.testing.embedded.decompression import decompress
from aioproducer.types import Outcome
from tests.support.compiled_path import new_batch
from tests.support.oracle import OracleRecord, encode_batch, encode_records

IDENTITY = ProducerIdentity(4711, 3)
RECORDS = [OracleRecord(1000 + number, b"key", b"value" * 20, [("name", b"value")]) for number in range(20)]

OPEN, CLOSED, IN_FLIGHT, DONE = BatchState.OPEN, BatchState.CLOSED, BatchState.IN_FLIGHT, BatchState.DONE
# The methods that move a batch to another state, with their allowed states.
UNFINISHED = {OPEN, CLOSED, IN_FLIGHT}
MOVES = [
    pytest.param(ProducerBatch.close, {OPEN}, CLOSED, id="close"),
    pytest.param(lambda batch: batch.mark_sent(1), {CLOSED}, IN_FLIGHT, id="mark_sent"),
    pytest.param(ProducerBatch.mark_returned, {IN_FLIGHT}, CLOSED, id="mark_returned"),
    pytest.param(lambda batch: batch.succeed(0, -1, -1), UNFINISHED, DONE, id="succeed"),
    pytest.param(lambda batch: batch.give_up(DeliveryError("refused")), UNFINISHED, DONE, id="give_up"),
    pytest.param(lambda batch: batch.replace_with([(0, filled())]), UNFINISHED, DONE, id="replace_with"),
]


def batch_in(state: BatchState) -> ProducerBatch:
    batch = new_batch()
    batch.try_append(b"v", None, 1, None)
    if state is not OPEN:
        batch.close()
    if state is IN_FLIGHT:
        batch.mark_sent(1)
    if state is DONE:
        batch.succeed(0, -1, -1)
    return batch


def filled() -> ProducerBatch:
    batch = new_batch()
    for timestamp, key, value, headers in RECORDS:
        batch.try_append(value, key, timestamp, headers)
    batch.close()
    return batch


def sent_bytes(batch: ProducerBatch) -> bytes:
    return b"".join(batch.seal())


# ------------------------------------------------------------------------------------------------------ states


@pytest.mark.promise("Docs", "DESIGN shows the state tables")
@pytest.mark.parametrize(("move", "legal", "to"), MOVES)
@pytest.mark.parametrize("state", BatchState)
def test_each_method_that_moves_a_batch_does_so_only_from_the_legal_states(state, move, legal, to):
    batch = batch_in(state)

    if state in legal:
        move(batch)
        assert batch.state is to
    else:
        with pytest.raises(AssertionError):
            move(batch)
        assert batch.state is state


def test_attempts_and_the_broker_are_recorded():
    batch = batch_in(CLOSED)

    batch.mark_sent(7)
    batch.mark_returned()
    batch.mark_sent(8)

    assert (batch.attempts, batch.broker) == (2, 8)


def test_the_outcome_is_unknown_once_an_attempt_may_have_been_persisted():
    batch = batch_in(CLOSED)
    assert batch.outcome is Outcome.NOT_PERSISTED

    batch.maybe_persisted = True

    assert batch.outcome is Outcome.UNKNOWN


# -------------------------------------------------------------------------------------------- closing and memory


def test_closing_returns_the_unused_reservation():
    batch = new_batch(capacity=10_000)
    batch.try_append(b"v", None, 1, None)

    surplus = batch.close()

    assert surplus == 10_000 - len(batch.records)
    assert batch.reserved == len(batch.records)
    assert batch.take_reserved() == len(batch.records)
    assert batch.take_reserved() == 0


def test_closing_keeps_a_surplus_that_is_not_worth_a_copy():
    batch = new_batch(capacity=64)
    batch.try_append(b"v" * 20, None, 1, None)

    assert batch.close() == 0
    assert batch.take_reserved() == 64


def test_records_cannot_be_read_while_their_buffer_may_still_move():
    with pytest.raises(AssertionError):
        _ = batch_in(OPEN).records


# --------------------------------------------------------------------------------------------------- compression


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_compressed_batch_is_what_the_oracle_writes_around_the_same_payload(codec):
    batch = filled()
    payload = compressor(codec)(batch.payload)

    batch.use_compressed(codec, payload)

    sent = sent_bytes(batch)
    assert sent == encode_batch(RECORDS, codec=codec, payload=payload)
    assert len(sent) == batch.wire_size < batch.size
    assert decompress(codec, sent[HEADER_SIZE:], 1 << 20) == encode_records(RECORDS)


@pytest.mark.promise("Records", "incompressible batches go uncompressed")
def test_payload_that_did_not_shrink_is_sent_uncompressed():
    batch = filled()

    batch.use_compressed(Codec.LZ4, bytes(batch.payload))

    assert batch.codec is Codec.NONE
    assert batch.wire_size == batch.size
    assert sent_bytes(batch) == encode_batch(RECORDS)


def test_compression_that_ends_after_the_batch_changes_nothing():
    batch = filled()
    batch.give_up(DeliveryError("expired"))

    batch.use_compressed(Codec.LZ4, b"")

    assert batch.codec is Codec.NONE
    assert batch.payload == b""


# --------------------------------------------------------------------------------------------- numbers and bytes


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a batch is compressed when it closes, numbered and checksummed when it is drained",
)
def test_sealed_batch_is_the_same_object_at_each_attempt():
    batch = filled()
    batch.number(IDENTITY, 17)

    first = batch.seal()
    batch.mark_sent(1)
    batch.mark_returned()
    second = batch.seal()

    assert all(one is other for one, other in zip(first, second, strict=True))
    expected = encode_batch(RECORDS, producer_id=4711, producer_epoch=3, base_sequence=17)
    assert b"".join(first) == b"".join(second) == expected
    check_crc(memoryview(b"".join(first)))


def test_records_are_sent_without_being_copied():
    batch = filled()

    _, payload = batch.seal()

    assert isinstance(payload, memoryview)
    assert payload.obj is batch.records.obj
    assert payload.readonly


def test_a_batch_can_be_numbered_again_while_nothing_was_persisted():
    batch = filled()
    assert not batch.is_numbered
    batch.number(IDENTITY, 17)
    assert batch.is_numbered
    before = sent_bytes(batch)

    batch.number(ProducerIdentity(4711, 4), 0)

    header = read_header(sent_bytes(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 4, 0)
    assert sent_bytes(batch) != before
    batch.number(None, -1)
    assert not batch.is_numbered
    assert sent_bytes(batch) == encode_batch(RECORDS)


def test_a_batch_that_may_be_persisted_is_never_numbered_again():
    batch = filled()
    batch.number(IDENTITY, 17)
    before = sent_bytes(batch)
    batch.maybe_persisted = True

    with pytest.raises(AssertionError):
        batch.number(ProducerIdentity(4711, 4), 0)

    assert sent_bytes(batch) == before


@pytest.mark.parametrize(("end", "legal", "to"), [move for move in MOVES if move.values[2] is DONE])
def test_ended_batch_keeps_no_bytes(end, legal, to):
    batch = filled()
    batch.number(IDENTITY, 0)
    batch.seal()

    end(batch)

    assert (batch.payload, batch.segments, batch.size) == (b"", (), 0)


# ------------------------------------------------------------------------------------------ withdrawn records


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_withdrawn_records_are_left_out_of_the_bytes_that_are_sent(codec):
    batch = new_batch(asyncio.get_running_loop())
    for timestamp, key, value, headers in RECORDS:
        batch.try_append(value, key, timestamp, headers)
    batch.close()
    if codec is not Codec.NONE:
        batch.use_compressed(codec, compressor(codec)(batch.payload))
    late = [batch.delivery(index) for index in (19, 0, 7)]
    kept = batch.delivery(8)
    assert batch.may_withdraw

    for delivery in late:
        batch.end_record(delivery, DeliveryError("too late", outcome=Outcome.NOT_PERSISTED), True)
    batch.drop_withdrawn()
    if codec is not Codec.NONE:
        batch.use_compressed(codec, compressor(codec)(batch.payload))
    batch.number(IDENTITY, 0)

    sent = sent_bytes(batch)
    header = read_header(sent)
    check_crc(memoryview(sent))
    payload = sent[HEADER_SIZE:] if codec is Codec.NONE else decompress(codec, sent[HEADER_SIZE:], 1 << 20)
    read = [record.timestamp for record in read_records(memoryview(payload), header)]
    assert (header.record_count, header.last_offset_delta, header.codec) == (17, 16, codec)
    assert read == [record.timestamp for index, record in enumerate(RECORDS) if index not in (0, 7, 19)]
    assert header.max_timestamp == max(read)
    batch.mark_sent(1)
    assert not batch.may_withdraw
    batch.succeed(100, -1, -1)
    assert (await kept).offset == 100 + 8 - 2
    assert [delivery.exception() is not None for delivery in late] == [True] * 3


def test_no_record_can_be_withdrawn_from_a_numbered_batch():
    batch = filled()
    batch.number(IDENTITY, 0)

    assert not batch.may_withdraw


# --------------------------------------------------------------------------------------------------- FlushWait


async def test_flush_wait_ends_with_its_last_batch():
    loop = asyncio.get_running_loop()
    batches = [new_batch(loop) for _ in range(2)]
    waiting = FlushWait(loop, batches)

    assert [batch.flushes for batch in batches] == [(waiting,), (waiting,)]
    waiting.one_ended()
    assert not waiting.future.done()
    waiting.one_ended()
    assert waiting.future.done()


async def test_a_flush_wait_for_nothing_ends_immediately():
    assert FlushWait(asyncio.get_running_loop(), []).future.done()


async def test_a_cancelled_flush_wait_is_left_alone():
    loop = asyncio.get_running_loop()
    waiting = FlushWait(loop, [new_batch(loop)])
    waiting.future.cancel()

    waiting.one_ended()

    assert waiting.future.cancelled()


# ------------------------------------------------------------------------------------------------ BatchBuilder


def builder(limit: int = 1000) -> BatchBuilder:
    return BatchBuilder(PartitionQueue("", -1), None, limit)


def test_a_builder_returns_the_position_and_size_of_each_record():
    built = builder()
    assert built.record_count() == 0
    assert built.size() == HEADER_SIZE

    first = built.append(key=b"key", value=b"value", timestamp=17)
    second = built.append(key=None, value=None, timestamp=5, headers=[("a", b"1")])

    assert (first.offset, second.offset) == (0, 1)
    assert built.record_count() == 2
    assert built.size() == HEADER_SIZE + first.size + second.size
    batch = built.take()
    assert sent_bytes(batch) == encode_batch(
        [OracleRecord(17, b"key", b"value"), OracleRecord(5, None, None, [("a", b"1")])]
    )


def test_a_builder_returns_the_timestamp_of_the_appended_record():
    built = builder()
    built.append(key=None, value=b"later", timestamp=17)

    assert built.append(key=None, value=b"earlier", timestamp=5).timestamp == 5


def test_a_full_builder_accepts_no_record_and_says_so():
    built = builder(limit=200)
    while built.append(key=None, value=b"v" * 30, timestamp=1) is not None:
        pass
    count = built.record_count()

    assert built.append(key=None, value=b"v" * 30, timestamp=1) is None

    assert built.record_count() == count > 0
    assert built.size() <= 200 + HEADER_SIZE


@pytest.mark.parametrize("limit", [0, 1, 1000])
def test_a_builder_accepts_one_record_that_is_larger_than_the_batch(limit):
    built = builder(limit)

    assert built.append(key=None, value=b"v" * 5000, timestamp=1) is not None
    assert built.append(key=None, value=b"v", timestamp=1) is None

    batch = built.take()
    assert 5000 <= batch.reserved == batch.size - HEADER_SIZE
    assert sent_bytes(batch) == encode_batch([OracleRecord(1, None, b"v" * 5000)])


def test_a_closed_builder_accepts_no_record():
    built = builder()
    built.append(key=None, value=b"v", timestamp=1)

    built.close()

    assert built.append(key=None, value=b"v", timestamp=1) is None
    assert built.take().record_count == 1


def test_an_invalid_record_leaves_the_builder_unchanged():
    built = builder()
    built.append(key=None, value=b"v", timestamp=1)
    size = built.size()

    with pytest.raises(InvalidRecordError):
        built.append(key="text", value=b"v", timestamp=1)

    assert (built.size(), built.record_count()) == (size, 1)


def test_empty_builder_cannot_be_sent():
    with pytest.raises(IllegalStateError, match="empty"):
        builder().take()


def test_builder_can_be_sent_once():
    built = builder()
    built.append(key=None, value=b"v", timestamp=1)
    built.take().enter(PartitionQueue("orders", 0), (0, 0), 0.0, 1.0)

    with pytest.raises(IllegalStateError, match="already been sent"):
        built.take()
    assert built.append(key=None, value=b"v", timestamp=1) is None


def test_a_builder_for_which_memory_was_missing_can_be_sent_later():
    built = builder()
    built.append(key=None, value=b"v", timestamp=1)

    assert built.take() is built.take()
