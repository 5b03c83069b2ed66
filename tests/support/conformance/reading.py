"""Cases about Fetch and ListOffsets, to the extent that consumers without a group need them."""

from __future__ import annotations

import asyncio

from aioproducer.protocol.error_codes import ErrorCode
from tests.conftest import MS
from tests.support.conformance.client import Client
from tests.support.conformance.suite import case
from tests.support.raw_client import NOW, batch_of

EARLIEST, LATEST, NEWEST = -2, -1, -3


async def offset(
    client: Client, timestamp: int, partition: int = 0, **settings: int
) -> tuple[int, int, int, int]:
    """The error code, offset, timestamp and leader epoch for a timestamp."""
    answer = await client.offset_at(timestamp, partition, **settings)
    return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch


@case()
async def the_first_and_the_end_offset_of_a_log(client: Client) -> None:
    assert [await offset(client, EARLIEST), await offset(client, LATEST)] == [(0, 0, -1, 0)] * 2
    await client.outcomes(batch_of(b"a", b"b"))
    assert [await offset(client, EARLIEST), await offset(client, LATEST)] == [(0, 0, -1, 0), (0, 2, -1, 0)]


@case()
async def the_first_record_since_a_time(client: Client) -> None:
    assert await offset(client, 0) == (0, -1, -1, -1)
    await client.outcomes(batch_of(b"a", b"b", b"c"), batch_of(b"d", timestamp=NOW + 100))
    assert [await offset(client, NOW + later) for later in (-1, 0, 1, 3, 100, 101)] == [
        (0, 0, NOW, 0),
        (0, 0, NOW, 0),
        (0, 1, NOW + 1, 0),
        (0, 3, NOW + 100, 0),
        (0, 3, NOW + 100, 0),
        (0, -1, -1, -1),
    ]


@case()
async def the_newest_record(client: Client) -> None:
    assert await offset(client, NEWEST) == (0, -1, -1, -1)
    await client.outcomes(batch_of(b"a", b"b", timestamp=NOW + 100), batch_of(b"c"))
    assert await offset(client, NEWEST) == (0, 1, NOW + 101, 0)


@case(2)
async def offsets_of_an_unknown_partition(client: Client) -> None:
    for partition in (2, -1):
        assert await offset(client, LATEST, partition) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)


@case()
async def offsets_in_every_version(client: Client) -> None:
    await client.outcomes(batch_of(b"a"))
    for version in range(1, 8):
        epoch = 0 if version >= 4 else -1
        assert await offset(client, LATEST, version=version) == (0, 1, -1, epoch)


@case()
async def offsets_and_the_leader_epoch(client: Client) -> None:
    assert (await offset(client, LATEST, epoch=0))[0] == ErrorCode.NONE
    assert (await offset(client, LATEST, epoch=3))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


# Fetch


@case()
async def a_fetch_from_any_offset_in_a_batch_returns_the_whole_batch(client: Client) -> None:
    batches = [batch_of(b"a", b"b"), batch_of(b"c")]
    await client.outcomes(*batches)
    stored = await client.batches()
    for offset_in, first in ((0, 0), (1, 0), (2, 1)):
        answer = await client.fetch(offset_in)
        assert bytes(answer.records) == b"".join(stored[first:])
        assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (3, 3, 0)


@case()
async def a_fetch_at_the_end_of_the_log_is_empty_and_one_after_it_is_out_of_range(client: Client) -> None:
    await client.outcomes(batch_of(b"a", b"b"))
    at_end = await client.fetch(2)
    assert (at_end.error_code, at_end.records, at_end.high_watermark) == (ErrorCode.NONE, b"", 2)
    for offset_beyond in (3, -1, 2**62):
        beyond = await client.fetch(offset_beyond)
        assert (beyond.error_code, beyond.high_watermark, beyond.log_start_offset, beyond.records) == (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            -1,
            -1,
            b"",
        )


@case()
async def an_unknown_partition_can_not_be_read(client: Client) -> None:
    for partition in (1, -1):
        answer = await client.fetch(0, partition)
        assert (answer.error_code, answer.high_watermark) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


@case()
async def fetch_and_the_leader_epoch(client: Client) -> None:
    assert (await client.fetch(epoch=0)).error_code == ErrorCode.NONE
    assert (await client.fetch(epoch=9)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@case()
async def the_first_batch_is_returned_whole_however_large_it_is(client: Client) -> None:
    batches = [batch_of(b"a" * 1000), batch_of(b"b" * 1000)]
    await client.outcomes(*batches)
    for limits in ({"partition_max_bytes": 1}, {"max_bytes": 1}):
        answer = await client.fetch(**limits)
        assert len(answer.records or b"") == len(batches[0])


@case()
async def later_batches_are_cut_off_at_the_limit(client: Client) -> None:
    batches = [batch_of(b"a" * 1000), batch_of(b"b" * 1000)]
    await client.outcomes(*batches)
    stored = b"".join(await client.batches())
    for limit in (len(batches[0]) + 5, len(batches[0]) + 500):
        for limits in ({"partition_max_bytes": limit}, {"max_bytes": limit}):
            assert (await client.fetch(**limits)).records == stored[:limit]


@case()
async def fetch_in_every_version(client: Client) -> None:
    await client.outcomes(batch_of(b"a"))
    for version in range(4, 13):
        answer = await client.fetch(version=version)
        assert (answer.error_code, answer.high_watermark, len(answer.records)) == (0, 1, 69)


@case()
async def a_fetch_waits_for_records(client: Client) -> None:
    async with client.another() as reader:
        reading = asyncio.create_task(reader.fetch(max_wait_ms=10_000, min_bytes=1))
        assert (await client.outcomes(batch_of(b"a")))[0].error_code == ErrorCode.NONE
        async with asyncio.timeout(5000 * MS):
            answer = await reading
    # Kafka notes the high watermark before it reads the records (Partition.readRecords), so it may be one behind.
    assert len(answer.records or b"") == 69
    assert answer.high_watermark in (0, 1)
    assert (await client.fetch()).high_watermark == 1


@case()
async def a_fetch_does_not_wait_longer_than_its_max_wait_ms(client: Client) -> None:
    await client.outcomes(batch_of(b"a"))
    answer = await client.fetch(max_wait_ms=20, min_bytes=1000)
    assert len(answer.records or b"") == 69


@case()
async def errors_do_not_wait(client: Client) -> None:
    async with asyncio.timeout(5000 * MS):
        answer = await client.fetch(9, max_wait_ms=10_000, min_bytes=1000)
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
