"""Cases about valid and damaged compressed batches (Kafka's Compression classes)."""

from __future__ import annotations

from aioproducer.protocol.compression import Codec, compressor
from aioproducer.protocol.error_codes import ErrorCode
from tests.support.conformance.client import Client, appended, outcome, refused
from tests.support.conformance.crafted import batch_of_payload, crafted, record
from tests.support.conformance.suite import case
from tests.support.raw_client import batch_of

CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


@case()
async def batches_of_every_codec_are_stored_unchanged(client: Client) -> None:
    for number, codec in enumerate(CODECS):
        batch = batch_of_payload(compressor(codec, None)(record(b"x" * 1000)), attributes=codec)
        assert await client.outcomes(batch) == [appended(number)]
        stored = (await client.batches())[-1]
        assert stored[16:] == batch[16:]


@case()
async def the_codec_ids_5_to_7_are_an_error_of_the_server(client: Client) -> None:
    for codec in (5, 6, 7):
        batch = crafted(batch_of(b"x"), attributes=codec)
        await client.refuses(batch, ErrorCode.UNKNOWN_SERVER_ERROR, log_start=0)


@case()
async def records_that_can_not_be_decompressed_are_an_error_of_the_server(client: Client) -> None:
    for codec in CODECS:
        packed = compressor(codec, None)(record(b"x" * 1000))
        for payload in (b"not compressed at all", packed[: len(packed) // 2], packed[:-1]):
            batch = batch_of_payload(payload, attributes=codec)
            await client.refuses(batch, ErrorCode.UNKNOWN_SERVER_ERROR, log_start=0)


# Bytes after the compressed records are ignored by decompressors that read no further than necessary.
BEHIND = {
    Codec.GZIP: ErrorCode.NONE,
    Codec.SNAPPY: ErrorCode.NONE,
    Codec.LZ4: ErrorCode.NONE,
    Codec.ZSTD: ErrorCode.UNKNOWN_SERVER_ERROR,
}


@case()
async def bytes_after_compressed_records(client: Client) -> None:
    for codec, error in BEHIND.items():
        packed = compressor(codec, None)(record(b"x" * 1000))
        answer = await client.produce(batch_of_payload(packed + b"\0\0\0", attributes=codec))
        assert answer.error_code == error


# The LZ4 decompressor stops after the first frame.
IN_TWO_PARTS = {
    Codec.GZIP: ErrorCode.NONE,
    Codec.SNAPPY: ErrorCode.NONE,
    Codec.LZ4: ErrorCode.INVALID_RECORD,
    Codec.ZSTD: ErrorCode.NONE,
}


@case()
async def records_that_were_compressed_in_two_parts(client: Client) -> None:
    for codec, error in IN_TWO_PARTS.items():
        compress = compressor(codec, None)
        packed = compress(record(b"a")) + compress(record(b"b", offset_delta=1))
        assert (await client.produce(batch_of_payload(packed, 2, attributes=codec))).error_code == error


@case()
async def an_empty_compressed_payload(client: Client) -> None:
    for codec in CODECS:
        error = ErrorCode.INVALID_RECORD if codec is Codec.ZSTD else ErrorCode.UNKNOWN_SERVER_ERROR
        await client.refuses(batch_of_payload(b"", attributes=codec), error, log_start=0)


@case()
async def compressed_records_are_counted_too(client: Client) -> None:
    for codec in CODECS:
        packed = compressor(codec, None)(record(b"a") + record(b"b", offset_delta=1))
        for count in (1, 3):
            batch = batch_of_payload(packed, count, attributes=codec)
            await client.refuses(batch, ErrorCode.INVALID_RECORD, log_start=0)


@case()
async def zstd_needs_produce_version_7(client: Client) -> None:
    batch = batch_of_payload(b"not looked at", attributes=Codec.ZSTD)
    for version in (3, 6):
        answer = await client.produce(batch, version=version)
        assert outcome(answer) == refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


@case()
async def compressed_records_with_odd_offset_deltas_are_an_error_of_the_server(client: Client) -> None:
    # Kafka tries to renumber them, but has not read the keys and values that it would have to write.
    packed = compressor(Codec.GZIP, None)(record(b"a", offset_delta=5) + record(b"b", offset_delta=3))
    batch = batch_of_payload(packed, 2, attributes=Codec.GZIP)
    await client.refuses(batch, ErrorCode.UNKNOWN_SERVER_ERROR, log_start=0)
