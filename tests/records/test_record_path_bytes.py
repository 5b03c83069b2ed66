"""The compiled encoder compared with the plain-Python one at the limits of its arithmetic: lengths at which a
varint grows, timestamps that are as far apart as possible, batches with withdrawn records, and the parts of
split batches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.errors import DeliveryError
from aioproducer.records._record_path import HEADER_SIZE, Delivery
from aioproducer.records.batch import BatchBuilder, ProducerBatch
from aioproducer.records.idempotence import ProducerIdentity
from tests.support.compiled_path import NoLoop, OpensBatches, bound, new_batch, sealed
from tests.support.oracle import OracleRecord, encode_batch, encode_record

LAST_TIMESTAMP = 2**63 - 1
NOW = 1_700_000_000_000

# The largest number in a zigzag varint of n bytes is 2^(7n-1) - 1.
BORDERS = [0, 1, 62, 63, 64, 65, 8190, 8191, 8192, 8193]
short = (
    st.none() | st.sampled_from([0, 1, 62, 63, 64, 65]).map(lambda size: b"x" * size) | st.binary(max_size=8)
)
data = short | st.sampled_from(BORDERS).map(lambda size: b"x" * size)
timestamps = (
    st.sampled_from([0, 1, LAST_TIMESTAMP, LAST_TIMESTAMP - 1, 2**62, 2**31, 2**32])
    | st.sampled_from(BORDERS).map(lambda away: NOW + away)
    | st.sampled_from(BORDERS).map(lambda away: NOW - away)
    | st.integers(0, LAST_TIMESTAMP)
)
names = st.sampled_from(["", "a", "\0", "é", "漢字", "😀" * 16, "n" * 63, "n" * 64]) | st.text(max_size=6)
few_headers = st.lists(st.tuples(names, short), max_size=3).map(tuple)
headers = (
    st.just(())
    | few_headers
    | st.tuples(names, data).map(lambda header: (header,))
    | st.sampled_from([63, 64, 65]).map(lambda count: (("", None),) * count)
)
batches = st.lists(
    st.builds(OracleRecord, timestamp=timestamps, key=data, value=data, headers=headers),
    min_size=1,
    max_size=12,
)
light = st.builds(OracleRecord, timestamp=timestamps, key=short, value=short, headers=few_headers)
light_batches = st.lists(light, min_size=1, max_size=12)
"""Batches of short records only, because the oracle's CRC takes most of the time."""


@settings(max_examples=200, deadline=None)
@given(batches, st.sampled_from([0, 1, 60, 64, 130]), st.sampled_from([0, 1, 61, 1000]), st.booleans())
def test_batch_at_the_borders_is_byte_for_byte_what_the_oracle_writes(
    given_records, more, capacity, transactional
):
    given_records = given_records + [OracleRecord(NOW)] * more  # offset deltas also have borders
    batch = new_batch(capacity=capacity, limit=1 << 30)
    for record in given_records:
        assert batch.try_append(record.value, record.key, record.timestamp, list(record.headers))

    batch.close()
    batch.number(ProducerIdentity(2**62, 2**15 - 1, is_transactional=transactional), 2**31 - 1)

    assert b"".join(batch.seal()) == encode_batch(
        given_records,
        producer_id=2**62,
        producer_epoch=2**15 - 1,
        base_sequence=2**31 - 1,
        transactional=transactional,
    )


def test_offset_deltas_grow_to_three_bytes():
    count = 8192 + 3
    batch = new_batch(capacity=0, limit=1 << 30)
    for _ in range(count):
        batch.try_append(None, None, NOW, None)

    assert sealed(batch) == encode_batch([OracleRecord(NOW)] * count)


@pytest.mark.parametrize("size", [2**20 - 1, 2**20, 2**20 + 1])
def test_lengths_grow_to_four_bytes(size):
    batch = new_batch(capacity=0, limit=1 << 30)
    record = OracleRecord(NOW, b"k" * size, b"v" * size, [("n" * size, b"h" * size)])
    batch.try_append(record.value, record.key, record.timestamp, record.headers)

    expected = encode_record(record, 0, 0)

    batch.close()
    assert bytes(batch.records) == expected


@settings(max_examples=150, deadline=None)
@given(batches)
def test_a_batch_built_by_the_user_is_what_the_oracle_writes(given_records):
    builder = BatchBuilder(new_batch().queue, NoLoop(), 1 << 30)
    sizes = [
        builder.append(
            key=record.key, value=record.value, timestamp=record.timestamp, headers=record.headers
        ).size
        for record in given_records
    ]

    base = given_records[0].timestamp
    assert sizes == [
        len(encode_record(record, index, record.timestamp - base))
        for index, record in enumerate(given_records)
    ]
    assert b"".join(builder.take().seal()) == encode_batch(given_records)


# ------------------------------------------------------------------------- records that are left out, and parts


@dataclass
class Sent:
    """Records as they were sent, with their deliveries and the expected result of each."""

    records: list[OracleRecord]
    deliveries: list[Delivery]
    expected: dict[int, object] = field(default_factory=dict)
    """The expected results by index: an offset, or the error itself."""

    @property
    def base_timestamp(self) -> int:
        return self.records[0].timestamp

    def bytes_of(self, indexes: Sequence[int], **numbers: int) -> bytes:
        """Return the oracle's batch of these records; the base timestamp remains that of the very first record."""
        kept = [self.records[index] for index in indexes]
        return encode_batch(kept, base_timestamp=self.base_timestamp, **numbers)


def sent(given_records: list[OracleRecord]) -> tuple[Sent, ProducerBatch]:
    accumulator = OpensBatches(NoLoop())
    path = bound(accumulator, max_request_size=1 << 24)
    topic = accumulator.topics["orders"]
    deliveries = [
        path._append(topic, record.value, record.key, 0, record.timestamp, record.headers, False)
        for record in given_records
    ]
    assert len(topic.queues[0].batches) == 1
    batch = accumulator.tail
    batch.close()
    return Sent(given_records, deliveries), batch


def without(some: Sent, batch: ProducerBatch, left_out: set[int]) -> list[int]:
    """Withdraw the records `left_out` in two steps, as their timeouts would; return the indexes of the
    remaining records."""
    for some_left_out in (sorted(left_out)[::2], sorted(left_out)[1::2]):
        for index in some_left_out:
            some.expected[index] = error = DeliveryError(f"too late: {index}")
            batch.end_record(some.deliveries[index], error, True)
        assert batch.live_count == batch.record_count - len(some_left_out)
        batch.drop_withdrawn()
    return [index for index in range(len(some.records)) if index not in left_out]


def some_of(count: int) -> st.SearchStrategy[set[int]]:
    """Draw any of `count` indexes, but not all of them."""
    return st.sets(st.integers(0, count - 1), max_size=count - 1)


def cut(
    some: Sent, batch: ProducerBatch, indexes: list[int], data: st.DataObject
) -> list[tuple[ProducerBatch, list[int]]]:
    """Split the batch in two, as KIP-126 does, or leave out the records that the broker named (KIP-467). A
    batch of a single record is not split."""
    if len(indexes) < 2:
        return [(batch, indexes)]
    end = batch.record_count + len(batch.withdrawn)
    if data.draw(st.booleans()):
        count = data.draw(st.integers(1, len(indexes) - 1))
        middle = batch.original_index(count)
        parts = [(0, batch.part(NoLoop(), 0, middle, {})), (middle, batch.part(NoLoop(), middle, end, {}))]
        batch.replace_with(parts)
        return [(parts[0][1], indexes[:count]), (parts[1][1], indexes[count:])]
    culprits = {
        position: DeliveryError(f"refused: {position}") for position in data.draw(some_of(len(indexes)))
    }
    some.expected |= {indexes[position]: error for position, error in culprits.items()}
    errors = {batch.original_index(position): error for position, error in culprits.items()}
    rest = batch.part(NoLoop(), 0, end, errors)
    batch.replace_with([(0, rest)])
    return [(rest, [index for position, index in enumerate(indexes) if position not in culprits])]


@pytest.mark.promise(
    "Simulation and fuzzing",
    "withdrawn records and parts of split batches are written as the oracle writes them",
)
@settings(max_examples=200, deadline=None)
@given(light_batches, st.data())
def test_batch_without_its_withdrawn_records_is_what_the_oracle_writes(given_records, data):
    some, batch = sent(given_records * data.draw(st.sampled_from([1, 1, 7])))

    kept = without(some, batch, data.draw(some_of(len(some.records))))

    assert b"".join(batch.seal()) == some.bytes_of(kept)
    assert [batch.original_index(index) for index in range(len(kept))] == kept


@pytest.mark.promise(
    "Simulation and fuzzing",
    "withdrawn records and parts of split batches are written as the oracle writes them",
)
@settings(max_examples=300, deadline=None)
@given(light_batches, st.data())
def test_parts_are_what_the_oracle_writes_and_each_delivery_follows_its_record(given_records, data):
    some, batch = sent(given_records * data.draw(st.sampled_from([1, 1, 7])))
    kept = without(some, batch, data.draw(some_of(len(some.records))))
    # These records are checked after each step. The others are checked only at the end, so that their
    # deliveries follow several steps at once.
    curious = data.draw(some_of(len(some.records)))

    leaves = [(batch, kept)]
    for _ in range(data.draw(st.integers(1, 5))):
        whole, indexes = leaves.pop(data.draw(st.integers(0, len(leaves) - 1)))
        leaves += cut(some, whole, indexes, data)
        assert not any(some.deliveries[index].done() for index in curious & set(kept))

    offset = 0
    for part, indexes in leaves:
        part.number(ProducerIdentity(7, 1), offset)
        assert b"".join(part.seal()) == some.bytes_of(
            indexes, producer_id=7, producer_epoch=1, base_sequence=offset
        )
        assert part.size == part.wire_size <= HEADER_SIZE + part.reserved
        part.succeed(offset, -1, -1)
        some.expected |= dict(zip(indexes, itertools.count(offset)))
        offset += len(indexes)
    for index, delivery in enumerate(some.deliveries):
        assert delivery.done()
        expected = some.expected[index]
        if isinstance(expected, int):
            metadata = delivery.result()
            assert (metadata.offset, metadata.timestamp) == (expected, some.records[index].timestamp)
        else:
            assert str(delivery.exception()) == str(expected)
