"""Cases about producer ids, epochs and sequences (ProducerStateManager, ProducerAppendInfo, ProducerStateEntry)."""

from __future__ import annotations

from aioproducer.protocol.error_codes import ErrorCode
from tests.support.conformance.client import Client, appended, outcome, refused
from tests.support.conformance.crafted import crafted, flipped
from tests.support.conformance.suite import case
from tests.support.oracle import OracleRecord, encode_batch
from tests.support.raw_client import NOW, batch_of

LAST = 2**31 - 1
OUT_OF_ORDER = refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log_start=0)
OLD_EPOCH = refused(ErrorCode.INVALID_PRODUCER_EPOCH, log_start=0)


@case()
async def sequences_continue_after_the_last_batch(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", b"b", sequence=0), batch_of(b"c", sequence=2), batch_of(b"d", b"e", sequence=3)
    ) == [appended(0), appended(2), appended(3)]


@case()
async def an_unknown_producer_may_start_with_any_sequence(client: Client) -> None:
    assert await client.outcomes(batch_of(b"a", sequence=77), batch_of(b"b", sequence=78)) == [
        appended(0),
        appended(1),
    ]


@case()
async def an_unknown_producer_may_start_in_any_epoch(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=5, epoch=3), batch_of(b"b", sequence=6, epoch=3)
    ) == [
        appended(0),
        appended(1),
    ]


@case()
async def a_gap_is_out_of_order(client: Client) -> None:
    assert await client.outcomes(batch_of(b"a", b"b", sequence=0), batch_of(b"c", sequence=3)) == [
        appended(0),
        OUT_OF_ORDER,
    ]
    assert await client.end_offset() == 2


@case()
async def after_a_gap_the_right_sequence_is_still_accepted(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=0),
        batch_of(b"c", sequence=2),
        batch_of(b"b", sequence=1),
        batch_of(b"c", sequence=2),
    ) == [appended(0), OUT_OF_ORDER, appended(1), appended(2)]


@case()
async def a_duplicate_of_any_of_the_last_5_batches_is_recognized(client: Client) -> None:
    batches = [batch_of(b"x", b"y", sequence=sequence) for sequence in (0, 2, 4, 6, 8)]
    await client.outcomes(*batches)
    # Kafka returns the largest timestamp of a duplicate as its log append time, even for a CreateTime topic.
    assert await client.outcomes(*reversed(batches)) == [
        appended(offset, log_append_time=NOW + 1) for offset in (8, 6, 4, 2, 0)
    ]
    assert await client.end_offset() == 10


@case()
async def the_6th_batch_from_the_end_is_forgotten(client: Client) -> None:
    batches = [batch_of(b"x", sequence=sequence) for sequence in range(6)]
    await client.outcomes(*batches)
    assert await client.outcomes(batches[0], batches[1]) == [
        OUT_OF_ORDER,
        appended(1, log_append_time=NOW),
    ]


@case()
async def a_duplicate_is_recognized_by_its_sequences_not_by_its_bytes(client: Client) -> None:
    assert await client.outcomes(batch_of(b"a", sequence=0), batch_of(b"b" * 50, sequence=0)) == [
        appended(0),
        appended(0, log_append_time=NOW),
    ]


@case()
async def a_duplicate_is_validated_before_it_is_recognized(client: Client) -> None:
    batch = batch_of(b"value", sequence=0)
    assert await client.outcomes(batch, flipped(batch)) == [appended(0), refused(ErrorCode.CORRUPT_MESSAGE)]


@case()
async def a_part_of_a_batch_is_not_a_duplicate(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", b"b", b"c", sequence=0),
        batch_of(b"a", b"b", sequence=0),
        batch_of(b"b", b"c", sequence=1),
        batch_of(b"c", sequence=2),
    ) == [appended(0), OUT_OF_ORDER, OUT_OF_ORDER, OUT_OF_ORDER]


@case()
async def a_batch_that_begins_before_the_end_is_out_of_order(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", b"b", sequence=0),
        batch_of(b"b", b"c", sequence=1),
        batch_of(b"a", b"b", b"c", sequence=0),
    ) == [appended(0), OUT_OF_ORDER, OUT_OF_ORDER]


@case()
async def a_batch_that_combines_two_batches_is_not_a_duplicate(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=0), batch_of(b"b", sequence=1), batch_of(b"a", b"b", sequence=0)
    ) == [appended(0), appended(1), OUT_OF_ORDER]


@case()
async def an_old_epoch_is_fenced(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=0, epoch=1),
        batch_of(b"b", sequence=1, epoch=0),
        batch_of(b"b", sequence=1, epoch=1),
    ) == [appended(0), OLD_EPOCH, appended(1)]


@case()
async def a_duplicate_of_an_old_epoch_is_fenced(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=0, epoch=0),
        batch_of(b"b", sequence=0, epoch=1),
        batch_of(b"a", sequence=0, epoch=0),
    ) == [appended(0), appended(1), OLD_EPOCH]


@case()
async def a_new_epoch_starts_with_sequence_0(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=0),
        batch_of(b"b", sequence=1, epoch=1),
        batch_of(b"b", sequence=0, epoch=1),
        batch_of(b"c", sequence=1, epoch=1),
    ) == [appended(0), OUT_OF_ORDER, appended(1), appended(2)]


@case()
async def a_new_epoch_that_was_rejected_is_not_remembered(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=0), batch_of(b"b", sequence=7, epoch=1), batch_of(b"b", sequence=1, epoch=0)
    ) == [appended(0), OUT_OF_ORDER, appended(1)]


@case()
async def epochs_may_be_skipped(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=0, epoch=2),
        batch_of(b"b", sequence=0, epoch=32_767),
        batch_of(b"c", sequence=0, epoch=32_766),
    ) == [appended(0), appended(1), OLD_EPOCH]


@case()
async def a_new_epoch_forgets_the_batches_of_the_old_one(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=0, epoch=0),
        batch_of(b"b", sequence=1, epoch=0),
        batch_of(b"c", sequence=0, epoch=1),
        batch_of(b"d", sequence=1, epoch=1),
        batch_of(b"c", sequence=0, epoch=1),
    ) == [appended(0), appended(1), appended(2), appended(3), appended(2, log_append_time=NOW)]


@case()
async def sequences_wrap_between_two_batches(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=LAST), batch_of(b"b", sequence=0), batch_of(b"c", sequence=1)
    ) == [appended(0), appended(1), appended(2)]


@case()
async def sequences_wrap_within_a_batch(client: Client) -> None:
    over = batch_of(b"a", b"b", b"c", sequence=LAST - 1)
    assert await client.outcomes(over, over, batch_of(b"d", sequence=0), batch_of(b"d", sequence=1)) == [
        appended(0),
        appended(0, log_append_time=NOW + 2),
        OUT_OF_ORDER,
        appended(3),
    ]


@case()
async def each_producer_has_its_own_sequences(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=0, producer_id=7),
        batch_of(b"a", sequence=0, producer_id=8, epoch=4),
        batch_of(b"b", sequence=1, producer_id=7),
        batch_of(b"b", sequence=1, producer_id=8, epoch=4),
        batch_of(b"c", sequence=1, producer_id=9),
    ) == [appended(offset) for offset in range(5)]


@case(2)
async def each_partition_has_its_own_sequences(client: Client) -> None:
    batches = [(partition, batch_of(b"a", sequence=0)) for partition in (0, 1)]
    answers = await client.answers(client.produce_request(batches))
    assert {index: outcome(answer) for index, answer in answers.items()} == {0: appended(0), 1: appended(0)}


@case()
async def records_without_a_producer_id_do_not_affect_the_sequences(client: Client) -> None:
    assert await client.outcomes(
        batch_of(b"a", sequence=0), batch_of(b"no id"), batch_of(b"b", sequence=1), batch_of(b"a", sequence=0)
    ) == [appended(0), appended(1), appended(2), appended(0, log_append_time=NOW)]


@case()
async def a_producer_id_needs_a_sequence(client: Client) -> None:
    batch = encode_batch([OracleRecord(NOW, None, b"x")], producer_id=7, producer_epoch=0)
    assert await client.outcomes(batch) == [refused(ErrorCode.INVALID_RECORD, log_start=0)]


@case()
async def a_sequence_without_a_producer_id_is_ignored(client: Client) -> None:
    batch = encode_batch([OracleRecord(NOW, None, b"x")], producer_id=-1, producer_epoch=3, base_sequence=5)
    assert await client.outcomes(batch, batch) == [appended(0), appended(1)]


@case()
async def a_negative_epoch_is_accepted(client: Client) -> None:
    batch = crafted(batch_of(b"x", sequence=0), producer_epoch=-1)
    assert await client.outcomes(batch, batch) == [appended(0), appended(0, log_append_time=NOW)]


@case()
async def producer_ids_need_not_come_from_the_broker(client: Client) -> None:
    batch = batch_of(b"x", sequence=0, producer_id=2**62)
    assert await client.outcomes(batch, batch) == [appended(0), appended(0, log_append_time=NOW)]


@case()
async def a_negative_producer_id_counts_as_no_producer_id(client: Client) -> None:
    batch = crafted(batch_of(b"x", sequence=0), producer_id=-2)
    without = crafted(batch_of(b"x"), producer_id=-2)
    assert await client.outcomes(batch, batch, without) == [appended(0), appended(1), appended(2)]


@case()
async def acks_do_not_change_what_is_remembered(client: Client) -> None:
    batch = batch_of(b"x", sequence=0)
    client.send(client.produce_request([(0, batch)], acks=0), client.newest_produce)
    assert outcome(await client.produce(batch, acks=1)) == appended(0, log_append_time=NOW)
    assert outcome(await client.produce(batch, acks=-1)) == appended(0, log_append_time=NOW)


@case(message_timestamp_type="LogAppendTime")
async def a_duplicate_in_a_log_append_time_topic_has_the_time_of_the_first_attempt(client: Client) -> None:
    batch = batch_of(b"x", sequence=0)
    first, second = await client.outcomes(batch, batch)
    assert first == second
    assert first.log_append_time_ms > NOW


@case()
async def a_transactional_batch_without_a_transactional_id_is_not_authorized(client: Client) -> None:
    batch = encode_batch(
        [OracleRecord(NOW, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    assert await client.outcomes(batch) == [refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)]
