"""The receipt of send_many, without a producer: the tests complete the batches. sending/test_bulk.py tests how
rows get into batches."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import Outcome, SendManyError
from aioproducer.errors import DeliveryError, InvalidRecordError
from aioproducer.records._record_path import ALL_APPENDED, Rows
from aioproducer.records.batch import ProducerBatch
from aioproducer.records.receipt import Receipt
from tests.support.compiled_path import OpensBatches, bound
from tests.support.producing import within


class Sent:
    """Rows in the batches of a topic, and their receipt."""

    def __init__(self, values: list[object], *, limit: int = 1 << 20, **columns: object) -> None:
        self.loop = asyncio.get_running_loop()
        self.unsent: list[tuple[str, list[BaseException]]] = []
        self.accumulator = OpensBatches(self.loop, partitions=2, limit=limit)
        self.rows = Rows(
            values,
            columns.get("keys"),
            columns.get("headers"),
            columns.get("timestamps"),
            columns.get("partitions", 0),
        )
        appended = bound(self.accumulator)._append_rows(
            self.accumulator.topics["orders"], self.rows, None, False
        )
        assert appended == ALL_APPENDED
        self.receipt = Receipt("orders", self.rows, self.loop, self._note_unsent)

    def _note_unsent(self, topic, errors):
        self.unsent.append((topic, list(errors)))

    def batches(self, partition: int = 0) -> list[ProducerBatch]:
        return list(self.accumulator.topics["orders"].queues[partition].batches)

    def acknowledge(self, batch: ProducerBatch, base_offset: int) -> None:
        batch.close()
        batch.mark_sent(0)
        batch.succeed(base_offset, -1, -1)
        self._ended(batch)

    def give_up(self, batch: ProducerBatch, error: BaseException) -> None:
        batch.close()
        batch.give_up(error)
        self._ended(batch)

    def _ended(self, batch: ProducerBatch) -> None:
        for waiting in batch.flushes:
            waiting.one_ended()


async def test_the_offsets_of_adjacent_batches_are_one_range_and_others_are_not():
    # A record of 100 bytes takes 109, and is written only if there is room for 132.
    sent = Sent([bytes(100)] * 6, limit=109 + 132)
    first, second, third = sent.batches()
    assert [batch.record_count for batch in (first, second, third)] == [2, 2, 2]

    sent.acknowledge(first, 17)
    assert sent.receipt.offsets == {0: [range(17, 19)]}
    assert not sent.receipt.done()
    sent.acknowledge(second, 19)
    sent.acknowledge(third, 40)

    assert sent.receipt.offsets == {0: [range(17, 21), range(40, 42)]}
    assert sent.receipt.done()
    assert sent.receipt.errors == {}


async def test_without_acknowledgements_there_are_no_offsets_and_no_errors():
    sent = Sent([b"v"] * 2)
    [batch] = sent.batches()
    sent.acknowledge(batch, -1)

    assert sent.receipt.offsets == {}
    assert sent.receipt.errors == {}
    assert sent.receipt.done()


async def test_errors_have_the_number_of_their_row_in_any_order_of_partitions():
    sent = Sent([b"0", b"1", b"2", b"3"], partitions=[1, 0, 1, 0])
    refused = DeliveryError("refused", outcome=Outcome.NOT_PERSISTED)
    [zeroth], [first] = sent.batches(0), sent.batches(1)
    sent.acknowledge(zeroth, 5)
    sent.give_up(first, refused)

    assert sent.receipt.errors == {0: refused, 2: refused}
    assert sent.receipt.offsets == {0: [range(5, 7)]}
    assert [sent.receipt.partition(row) for row in range(4)] == [1, 0, 1, 0]


async def test_a_row_that_was_not_sent_has_no_partition_and_its_delivery_raises_the_reason():
    sent = Sent([b"0", "not bytes", b"2"], timestamps=[7, 8, 9])
    [batch] = sent.batches()
    sent.acknowledge(batch, 0)

    assert sent.receipt.partition(1) is None
    with pytest.raises(InvalidRecordError, match="must be bytes"):
        sent.receipt.delivery(1)
    metadata = sent.receipt.delivery(2).result()
    assert (metadata.offset, metadata.timestamp) == (1, 9)
    assert list(sent.receipt.errors) == [1]
    for row in (-1, 3):
        with pytest.raises(IndexError, match=f"row {row} does not exist; the call has 3 rows"):
            sent.receipt.delivery(row)


@pytest.mark.parametrize(
    ("outcomes", "whole"),
    [
        ([Outcome.NOT_PERSISTED, Outcome.NOT_PERSISTED], Outcome.NOT_PERSISTED),
        ([Outcome.NOT_PERSISTED, Outcome.UNKNOWN], Outcome.UNKNOWN),
    ],
)
async def test_the_common_error_is_unknown_if_that_of_one_row_is_and_has_the_flags_of_each(outcomes, whole):
    sent = Sent([b"0", b"1"], partitions=[0, 1])
    for partition, outcome in enumerate(outcomes):
        [batch] = sent.batches(partition)
        sent.give_up(batch, DeliveryError("no", outcome=outcome, requires_abort=partition == 1))

    with pytest.raises(
        SendManyError, match="2 of 2 rows for topic orders failed; the first is row 0: no"
    ) as caught:
        await sent.receipt
    assert caught.value.outcome is whole
    assert caught.value.requires_abort
    assert not caught.value.requires_reinit
    assert list(caught.value.errors) == [0, 1]


async def test_errors_of_a_receipt_keep_no_frame_of_a_caller_alive():
    sent = Sent([b"0", 1])

    for _ in range(2):
        with pytest.raises(InvalidRecordError, match="the value must be bytes"):
            sent.receipt.delivery(1)

    assert sent.rows.errors[1].__traceback__ is None


async def test_waiting_ends_with_the_last_batch_and_retrieves_no_error():
    sent = Sent([b"0", b"1"], partitions=[0, 1])
    [zeroth], [first] = sent.batches(0), sent.batches(1)
    waiting = asyncio.ensure_future(sent.receipt.wait())
    sent.acknowledge(zeroth, 0)
    await asyncio.sleep(0)
    assert not waiting.done()
    assert repr(sent.receipt) == "<Receipt orders: 2 rows, pending>"

    sent.give_up(first, DeliveryError("no"))

    assert await within(1, waiting) is sent.receipt
    assert repr(sent.receipt) == "<Receipt orders: 2 rows, done>"
    assert list(sent.receipt.errors) == [1]


async def test_the_parts_of_a_split_batch_have_the_results_of_their_rows():
    sent = Sent([b"0", b"1", b"2"])
    [batch] = sent.batches()
    batch.close()
    first, second = batch.part(sent.loop, 0, 2, {}), batch.part(sent.loop, 2, 3, {})
    batch.replace_with([(0, first), (2, second)])
    refused = DeliveryError("too large")
    second.give_up(refused)
    assert not sent.receipt.done()
    first.mark_sent(0)
    first.succeed(8, -1, -1)

    assert sent.receipt.done()
    assert sent.receipt.offsets == {0: [range(8, 10)]}
    assert sent.receipt.errors == {2: refused}
    assert sent.receipt.delivery(0).result().timestamp == first.base_timestamp


@pytest.mark.parametrize("looked", [False, True])
async def test_a_dropped_receipt_passes_on_its_unretrieved_errors(looked):
    sent = Sent([b"0", "not bytes"])
    [batch] = sent.batches()
    sent.acknowledge(batch, 0)
    if looked:
        assert list(sent.receipt.errors) == [1]
    error = sent.rows.errors[1]

    del sent.receipt

    assert sent.unsent == ([] if looked else [("orders", [error])])
