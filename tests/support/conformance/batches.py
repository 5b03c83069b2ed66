"""Cases about malformed and unusual record batches (ProduceRequest.validateRecords, UnifiedLog, LogValidator)."""

from __future__ import annotations

from aioproducer.protocol.error_codes import ErrorCode
from tests.support.conformance.client import Client, appended
from tests.support.conformance.crafted import batch_of_payload, crafted, flipped, record
from tests.support.conformance.suite import case
from tests.support.oracle import OracleRecord, encode_batch, varint
from tests.support.raw_client import NOW, batch_of


@case()
async def a_flipped_bit_is_a_corrupt_message(client: Client) -> None:
    await client.refuses(flipped(batch_of(b"value")), ErrorCode.CORRUPT_MESSAGE)


@case()
async def a_checksum_of_zero_is_not_accepted(client: Client) -> None:
    await client.refuses(crafted(batch_of(b"value"), crc=0), ErrorCode.CORRUPT_MESSAGE)


@case()
async def formats_0_and_1_are_not_accepted(client: Client) -> None:
    for magic in (0, 1):
        await client.refuses(crafted(batch_of(b"value"), magic=magic), ErrorCode.INVALID_RECORD)


@case()
async def formats_of_the_future_are_corrupt(client: Client) -> None:
    for magic in (3, 127, -1):
        await client.refuses(crafted(batch_of(b"value"), magic=magic), ErrorCode.CORRUPT_MESSAGE)


@case()
async def a_batch_without_its_last_byte_is_invalid(client: Client) -> None:
    await client.refuses(batch_of(b"cut")[:-1], ErrorCode.INVALID_RECORD)


@case()
async def a_header_that_is_cut_off_is_invalid(client: Client) -> None:
    for size in (1, 12, 17, 30, 60):
        await client.refuses(batch_of(b"cut")[:size], ErrorCode.INVALID_RECORD)


@case()
async def an_empty_records_field_is_invalid(client: Client) -> None:
    await client.refuses(b"", ErrorCode.INVALID_RECORD)


@case()
async def a_length_below_the_smallest_header_is_corrupt(client: Client) -> None:
    for length in (-1, 0, 13):
        await client.refuses(crafted(batch_of(b"value"), length=length), ErrorCode.CORRUPT_MESSAGE)


@case()
async def a_length_that_ends_in_the_header_is_corrupt(client: Client) -> None:
    await client.refuses(crafted(batch_of(b"value"), length=40), ErrorCode.CORRUPT_MESSAGE)


@case()
async def a_length_beyond_the_bytes_is_invalid(client: Client) -> None:
    await client.refuses(crafted(batch_of(b"value"), length=1000), ErrorCode.INVALID_RECORD)


@case()
async def a_length_that_overflows_in_java_is_an_error_of_the_server(client: Client) -> None:
    for length in (2**31 - 1, 2**31 - 12):
        await client.refuses(crafted(batch_of(b"value"), length=length), ErrorCode.UNKNOWN_SERVER_ERROR)


@case()
async def bytes_after_the_batch_are_cut_off(client: Client) -> None:
    batch = batch_of(b"value")
    for behind in (b"\0", b"\0" * 11, batch[:16], batch[:-1]):
        await client.produce(batch + behind)
    assert [len(found) for found in await client.batches()] == [len(batch)] * 4


@case()
async def two_batches_for_one_partition_are_rejected(client: Client) -> None:
    await client.refuses(batch_of(b"a") + batch_of(b"b"), ErrorCode.INVALID_RECORD)


@case()
async def a_second_batch_is_rejected_before_any_checksum_is_checked(client: Client) -> None:
    await client.refuses(flipped(batch_of(b"a")) + flipped(batch_of(b"b")), ErrorCode.INVALID_RECORD)


@case()
async def the_base_offset_must_be_0(client: Client) -> None:
    batch = encode_batch([OracleRecord(NOW, None, b"x")], base_offset=5)
    await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def the_base_offset_is_checked_before_the_checksum(client: Client) -> None:
    batch = encode_batch([OracleRecord(NOW, None, b"x")], base_offset=-5)
    await client.refuses(flipped(batch), ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def the_broker_overwrites_the_leader_epoch(client: Client) -> None:
    batch = encode_batch([OracleRecord(NOW, None, b"x")], partition_leader_epoch=9)
    assert await client.outcomes(batch) == [appended(0)]
    (header,) = await client.headers()
    assert header.partition_leader_epoch == 0


@case()
async def clients_may_not_write_control_batches(client: Client) -> None:
    batch = encode_batch([OracleRecord(NOW, b"\0\0\0\0", b"x")], control=True)
    await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def a_batch_without_records_is_invalid(client: Client) -> None:
    for count in (0, -1):
        batch = crafted(batch_of(b""), payload=b"", record_count=count, last_offset_delta=count - 1)
        await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def the_record_count_must_match_the_last_offset_delta(client: Client) -> None:
    for delta in (0, 2, -1, 2**31 - 1):
        batch = crafted(batch_of(b"a", b"b"), last_offset_delta=delta)
        await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def more_records_than_the_count_are_invalid(client: Client) -> None:
    batch = crafted(batch_of(b"a", b"b"), record_count=1, last_offset_delta=0)
    await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def fewer_records_than_the_count_are_invalid(client: Client) -> None:
    batch = crafted(batch_of(b"a", b"b"), record_count=3, last_offset_delta=2)
    await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def a_records_length_must_match_its_fields(client: Client) -> None:
    right = len(record()) - 1
    for length in (right - 1, right + 1, 0, -1, 1000):
        batch = batch_of_payload(record(length=length))
        await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def a_record_that_is_cut_off_is_invalid(client: Client) -> None:
    await client.refuses(batch_of_payload(record(b"cut")[:-2]), ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def a_key_longer_than_its_record_is_invalid(client: Client) -> None:
    body = b"\0\0\0" + varint(100) + b"key" + varint(-1) + b"\0"
    batch = batch_of_payload(varint(len(body)) + body)
    await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def any_negative_length_of_a_key_or_value_is_null(client: Client) -> None:
    body = b"\0\0\0" + varint(-2) + varint(-1000) + b"\0"
    assert await client.outcomes(batch_of_payload(varint(len(body)) + body)) == [appended(0)]


@case()
async def a_header_needs_a_name(client: Client) -> None:
    batch = batch_of_payload(record(headers=varint(1) + varint(-1) + varint(-1)))
    await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def headers_must_match_their_count(client: Client) -> None:
    for count in (2, 1000, -1):
        batch = batch_of_payload(record(headers=varint(count) + varint(1) + b"h" + varint(-1)))
        await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def the_name_of_a_header_need_not_be_utf_8(client: Client) -> None:
    batch = batch_of_payload(record(headers=varint(1) + varint(2) + b"\xff\xfe" + varint(-1)))
    assert await client.outcomes(batch) == [appended(0)]


@case()
async def attributes_of_a_record_are_ignored(client: Client) -> None:
    assert await client.outcomes(batch_of_payload(record(attributes=0x7F))) == [appended(0)]


@case()
async def unused_bits_of_the_attributes_are_kept(client: Client) -> None:
    assert await client.outcomes(crafted(batch_of(b"x"), attributes=0x7F80)) == [appended(0)]
    (header,) = await client.headers()
    assert header.attributes == 0x7F80


@case()
async def offset_deltas_of_records_are_not_checked(client: Client) -> None:
    batch = batch_of_payload(record(b"a", offset_delta=5) + record(b"b", offset_delta=3), 2)
    assert await client.outcomes(batch) == [appended(0)]
    (stored,) = await client.batches()
    assert stored[61:] == batch[61:]


@case()
async def a_records_length_with_too_many_bytes_is_an_error_of_the_server(client: Client) -> None:
    batch = batch_of_payload(b"\xff" * 6 + record())
    await client.refuses(batch, ErrorCode.UNKNOWN_SERVER_ERROR, log_start=0)


@case()
async def another_number_with_too_many_bytes_is_an_invalid_record(client: Client) -> None:
    batch = batch_of_payload(varint(20) + b"\0" + b"\xff" * 11 + b"\0" * 8)
    await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)
