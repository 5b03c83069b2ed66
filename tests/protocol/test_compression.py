from __future__ import annotations

import gzip
import random
import sys
import threading
import zlib

import aiokafka.codec
import cramjam
import lz4.frame
import pytest
from isal import isal_zlib

from aioproducer.errors import ConfigError, ProtocolError
from aioproducer.protocol.compression import (
    LEVELS,
    XERIAL_HEADER,
    Codec,
    check_level,
    codec_named,
    compressor,
    zstd,
)
from aioproducer.testing.embedded.decompression import decompress

PACKING = [codec for codec in Codec if codec is not Codec.NONE]
_RANDOM = random.Random(7)
SAMPLES = {
    "empty": b"",
    "one byte": b"x",
    "text": b'{"user": 17, "amount": 3.5}' * 4000,
    "noise": _RANDOM.randbytes(200_000),
    "more than a block": bytes(range(256)) * 10_000,
}


def levels_of(codec: Codec) -> list[int | None]:
    if codec not in LEVELS:
        return [None]
    lowest, highest = LEVELS[codec]
    return [None, max(lowest, -7), 1, highest if codec is not Codec.ZSTD else 19]


def unsized_zstd(data):
    """Return a zstd frame without the size of its content, as Java writes it."""
    return zstd.compress(data, options={zstd.CompressionParameter.content_size_flag: 0})


def lz4_with_everything(data):
    """Return an lz4 frame with all checksums and the size of its content."""
    return lz4.frame.compress(
        data, block_linked=False, block_checksum=True, content_checksum=True, store_size=True
    )


CODEC_AND_LEVEL = [(codec, level) for codec in Codec for level in levels_of(codec)]


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        (None, Codec.NONE),
        ("none", Codec.NONE),
        ("gzip", Codec.GZIP),
        ("snappy", Codec.SNAPPY),
        ("lz4", Codec.LZ4),
        ("zstd", Codec.ZSTD),
    ],
)
def test_a_codec_is_found_by_its_name_in_kafka(name, codec):
    assert codec_named(name) is codec


def test_wire_ids_are_those_of_kafka():
    assert [codec.value for codec in Codec] == [0, 1, 2, 3, 4]
    assert [codec.name for codec in Codec] == ["NONE", "GZIP", "SNAPPY", "LZ4", "ZSTD"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("zst", "'zstd'"), ("GZIP", "'gzip'"), ("snapy", "'snappy'"), ("brotli", None), (3, None)],
)
def test_unknown_codec_is_refused_with_the_nearest_name(name, hint):
    with pytest.raises(ConfigError, match="compression_type") as caught:
        codec_named(name)

    assert caught.value.setting == "compression_type"
    assert caught.value.value == name
    assert (f"did you mean {hint}?" in str(caught.value)) is (hint is not None)


@pytest.mark.promise("Records", "gzip, snappy, lz4 and zstd are supported, with levels")
@pytest.mark.promise("KIPs", "KIP-390: compression levels")
@pytest.mark.parametrize(
    ("codec", "level"),
    [
        *[(Codec.GZIP, level) for level in (-1, 1, 9, None)],
        *[(Codec.LZ4, level) for level in (1, 17, None)],
        *[(Codec.ZSTD, level) for level in (-131072, -1, 0, 22, None)],
        (Codec.NONE, None),
        (Codec.SNAPPY, None),
    ],
)
def test_level_of_kip_390_is_accepted(codec, level):
    check_level(codec, level)

    packed = compressor(codec, level)(b"abc" * 10)

    assert decompress(codec, packed) == b"abc" * 10


@pytest.mark.promise("Records", "gzip, snappy, lz4 and zstd are supported, with levels")
@pytest.mark.promise("KIPs", "KIP-390: compression levels")
@pytest.mark.parametrize(
    ("codec", "level"),
    [
        *[(Codec.GZIP, level) for level in (-2, 0, 10, "6", 6.0, True)],
        *[(Codec.LZ4, level) for level in (-1, 0, 18)],
        *[(Codec.ZSTD, level) for level in (-131073, 23)],
        (Codec.NONE, 1),
        (Codec.SNAPPY, 1),
    ],
)
def test_level_out_of_range_is_refused(codec, level):
    with pytest.raises(ConfigError, match="compression_level") as caught:
        compressor(codec, level)

    assert caught.value.setting == "compression_level"


@pytest.mark.promise("Packaging", "all four codecs work after a plain install")
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize(("codec", "level"), CODEC_AND_LEVEL)
def test_round_trip(codec, level, sample):
    data = SAMPLES[sample]

    packed = compressor(codec, level)(data)

    assert type(packed) is bytes
    assert decompress(codec, packed, len(data)) == data


@pytest.mark.parametrize("codec", Codec)
def test_any_buffer_can_be_compressed(codec):
    data = SAMPLES["text"]
    compress = compressor(codec)
    expected = compress(data)

    assert compress(bytearray(data)) == expected
    assert compress(memoryview(b"head" + data + b"tail")[4:-4]) == expected


@pytest.mark.promise("Records", "gzip, snappy, lz4 and zstd are supported, with levels")
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize(
    ("codec", "read"),
    [
        (Codec.GZIP, gzip.decompress),
        (Codec.GZIP, aiokafka.codec.gzip_decode),
        (Codec.GZIP, lambda packed: bytes(cramjam.gzip.decompress(packed))),
        (Codec.SNAPPY, aiokafka.codec.snappy_decode),
        (Codec.LZ4, aiokafka.codec.lz4_decode),
        (Codec.LZ4, lz4.frame.decompress),
        (Codec.ZSTD, aiokafka.codec.zstd_decode),
    ],
)
def test_other_implementations_read_our_compressed_data(codec, read, sample):
    packed = compressor(codec)(SAMPLES[sample])
    if codec is Codec.SNAPPY and sample == "empty":
        assert packed == XERIAL_HEADER  # aiokafka mistakes a header without blocks for raw snappy
        return

    assert read(packed) == SAMPLES[sample]


@pytest.mark.parametrize("sample", [name for name in SAMPLES if name != "empty"])
@pytest.mark.parametrize(
    ("codec", "write"),
    [
        (Codec.GZIP, aiokafka.codec.gzip_encode),
        (Codec.SNAPPY, aiokafka.codec.snappy_encode),
        (Codec.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
        (Codec.LZ4, aiokafka.codec.lz4_encode),
        (Codec.LZ4, lz4_with_everything),
        (Codec.ZSTD, aiokafka.codec.zstd_encode),
        (Codec.ZSTD, unsized_zstd),
    ],
)
def test_compressed_data_of_other_implementations_is_read(codec, write, sample):
    data = SAMPLES[sample]

    assert decompress(codec, write(data), len(data)) == data


def test_gzip_is_one_member_without_name_and_time():
    packed = compressor(Codec.GZIP)(b"abc" * 100)

    assert packed[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
    reader = zlib.decompressobj(31)
    assert reader.decompress(packed) == b"abc" * 100
    assert reader.eof
    assert reader.unused_data == b""


@pytest.mark.promise("Records", "snappy is written in xerial framing, lz4 as a frame that Kafka reads")
@pytest.mark.parametrize(
    ("size", "level", "block_size"),
    [
        (0, None, 1 << 16),
        (1 << 16, None, 1 << 16),
        ((1 << 16) + 1, None, 1 << 18),
        (1 << 18, 1, 1 << 18),
        ((1 << 20) - 1, 2, 1 << 20),
        (1 << 22, None, 1 << 22),
        ((1 << 22) + 1, None, 1 << 22),
        (1 << 20, 3, 1 << 16),
        (1 << 20, 17, 1 << 16),
    ],
)
@pytest.mark.parametrize("sample", ["more than a block", "noise"])
def test_lz4_frame_is_one_that_kafka_accepts(size, level, block_size, sample):
    data = (SAMPLES[sample] * (size // len(SAMPLES[sample]) + 1))[:size]

    packed = compressor(Codec.LZ4, level)(data)

    frame = lz4.frame.get_frame_info(packed)
    assert not frame["block_linked"]
    assert frame["block_size"] == block_size
    assert not frame["content_checksum"]
    assert not frame["block_checksum"]
    assert frame["content_size"] == 0
    assert lz4.frame.decompress(packed) == data
    assert decompress(Codec.LZ4, packed) == data
    assert len(packed) <= size + 7 + 4 + 4 * (size // block_size + 1)


@pytest.mark.parametrize("level", [3, 9, 17])
def test_lz4_at_a_high_level_is_as_small_as_from_another_library(level):
    chance = random.Random(level)
    data = b"".join(
        b'{"user": %d, "amount": %d}' % (chance.randrange(9999), chance.randrange(999)) for _ in range(9000)
    )
    other = lz4.frame.compress(data, compression_level=level, block_linked=False)

    packed = compressor(Codec.LZ4, level)(data)

    assert len(packed) < len(other) * 1.01
    assert len(packed) < len(compressor(Codec.LZ4)(data))


def test_lz4_is_valid_even_if_a_chunk_is_compressed_to_several_blocks(monkeypatch):
    data = SAMPLES["text"] + SAMPLES["noise"]
    whole = compressor(Codec.LZ4, 9)(data)
    split = []

    def in_blocks(chunk, level):
        """Compress a chunk into several linked blocks, as cramjam did before 2.14."""
        with lz4.frame.LZ4FrameCompressor(
            compression_level=level, block_linked=True, auto_flush=True
        ) as packer:
            parts = [packer.begin()]
            parts += [packer.compress(chunk[at : at + 8192]) for at in range(0, len(chunk), 8192)]
            split.append(b"".join([*parts, packer.flush()]))
        return split[-1]

    monkeypatch.setattr(cramjam.lz4, "compress", in_blocks)

    packed = compressor(Codec.LZ4, 9)(data)

    assert len(split) == 1
    assert not lz4.frame.get_frame_info(packed)["block_linked"]
    assert lz4.frame.decompress(packed) == decompress(Codec.LZ4, packed) == data
    assert len(packed) < len(whole) * 1.01


@pytest.mark.promise("KIPs", "KIP-110: zstd")
def test_zstd_frame_contains_its_size():
    packed = compressor(Codec.ZSTD)(SAMPLES["text"])

    assert zstd.get_frame_info(packed).decompressed_size == len(SAMPLES["text"])


@pytest.mark.promise("Packaging", "all four codecs work after a plain install")
@pytest.mark.parametrize("level", [None, -131072, 1, 19])
def test_zstd_works_on_a_python_without_libzstd(level, monkeypatch):
    expected = compressor(Codec.ZSTD, level)(SAMPLES["text"])
    monkeypatch.setattr("aioproducer.protocol.compression.zstd", None)

    packed = compressor(Codec.ZSTD, level)(SAMPLES["text"])

    assert type(packed) is bytes
    assert zstd.get_frame_info(packed).decompressed_size == len(SAMPLES["text"])
    assert decompress(Codec.ZSTD, packed) == SAMPLES["text"]
    assert len(packed) <= len(expected) + 16


@pytest.mark.promise("Packaging", "all four codecs work after a plain install")
@pytest.mark.parametrize("level", [None, -1, 1, 3, 6])
def test_gzip_works_without_isal(level, monkeypatch):
    monkeypatch.setattr("aioproducer.protocol.compression.isal_zlib", None)

    packed = compressor(Codec.GZIP, level)(SAMPLES["text"])

    assert gzip.decompress(packed) == SAMPLES["text"]
    assert packed == zlib.compress(SAMPLES["text"], level if level in (3, 6) else 1, 31)


def test_the_embedded_broker_reports_a_python_without_libzstd(monkeypatch):
    packed = compressor(Codec.ZSTD)(SAMPLES["text"])
    monkeypatch.setattr("aioproducer.testing.embedded.decompression.zstd", None)

    with pytest.raises(ProtocolError, match="zstd: this Python was built without libzstd"):
        decompress(Codec.ZSTD, packed)


@pytest.mark.promise("Records", "snappy is written in xerial framing, lz4 as a frame that Kafka reads")
def test_snappy_uses_xerials_framing():
    data = SAMPLES["more than a block"]

    packed = compressor(Codec.SNAPPY)(data)

    assert packed[:16] == bytes.fromhex("82 53 4e 41 50 50 59 00 00 00 00 01 00 00 00 01")
    unpacked = b""
    at = 16
    while at < len(packed):
        length = int.from_bytes(packed[at : at + 4], "big")
        block = packed[at + 4 : at + 4 + length]
        assert cramjam.snappy.decompress_raw_len(block) <= 1 << 20
        unpacked += bytes(cramjam.snappy.decompress_raw(block))
        at += 4 + length
    assert at == len(packed)
    assert unpacked == data


@pytest.mark.promise("Records", "large batches are compressed in a thread")
@pytest.mark.parametrize("codec", PACKING)
def test_one_compressor_serves_several_threads_at_once(codec):
    compress = compressor(codec)
    inputs = [bytes([number]) * 50_000 + SAMPLES["text"] for number in range(4)]
    expected = [compress(data) for data in inputs]
    wrong = []
    start = threading.Barrier(len(inputs))

    def work(number):
        start.wait()
        for _ in range(20):
            if compress(inputs[number]) != expected[number]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


@pytest.mark.promise("Records", "large batches are compressed in a thread")
@pytest.mark.parametrize(
    ("codec", "level"),
    [*((codec, None) for codec in PACKING), (Codec.GZIP, 6), (Codec.LZ4, 9), (Codec.ZSTD, 9)],
)
def test_other_threads_run_while_a_batch_is_compressed(codec, level):
    compress = compressor(codec, level)
    data = SAMPLES["noise"] * 40
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # a thread that does not release the GIL then keeps it until it has finished

    def runs_at_the_same_time():
        started = threading.Event()
        ended = threading.Event()

        def work():
            started.set()
            compress(data)
            ended.set()

        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        at_the_same_time = not ended.is_set()
        thread.join()
        return at_the_same_time

    try:
        assert any(runs_at_the_same_time() for _ in range(20))  # a busy machine may wake this thread late
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("codec", Codec)
def test_decompression_stops_at_the_cap(codec):
    bomb = compressor(codec)(bytes(5_000_000))

    assert len(decompress(codec, bomb, 5_000_000)) == 5_000_000
    with pytest.raises(ProtocolError, match="allowed"):
        decompress(codec, bomb, 4_999_999)
    with pytest.raises(ProtocolError, match="allowed"):
        decompress(codec, bomb, 0)


def test_decompression_of_a_frame_without_its_size_stops_at_the_cap():
    bomb = unsized_zstd(bytes(50_000_000))

    with pytest.raises(ProtocolError, match="allowed"):
        decompress(Codec.ZSTD, bomb, 1000)


@pytest.mark.parametrize("codec", PACKING)
def test_a_payload_cut_off_anywhere_is_refused(codec):
    packed = compressor(codec)(SAMPLES["text"][:500])
    assert len(packed) < 500

    for size in range(len(packed)):
        if codec is Codec.SNAPPY and size == len(XERIAL_HEADER):
            continue  # a header without blocks is a complete stream
        with pytest.raises(ProtocolError, match=codec.name.lower()):
            decompress(codec, packed[:size])


def test_an_unsized_zstd_frame_cut_off_anywhere_is_refused():
    packed = unsized_zstd(SAMPLES["noise"][:700])

    for size in range(len(packed)):
        with pytest.raises(ProtocolError, match="zstd"):
            decompress(Codec.ZSTD, packed[:size])


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        *[(codec, compressor(codec)(b"abc" * 100)) for codec in PACKING],
        (Codec.ZSTD, unsized_zstd(b"abc" * 100)),
    ],
)
@pytest.mark.parametrize("behind", [b"\x00", b"trailing bytes", b"x" * 300])
def test_bytes_after_the_end_are_rejected(codec, packed, behind):
    with pytest.raises(ProtocolError, match=codec.name.lower()):
        decompress(codec, packed + behind)


@pytest.mark.parametrize("codec", PACKING)
def test_garbage_is_refused(codec):
    noise = random.Random(3)
    packed = compressor(codec)(SAMPLES["text"][:2000])

    for _ in range(300):
        damaged = bytearray(packed)
        damaged[noise.randrange(len(damaged))] ^= 1 << noise.randrange(8)
        for payload in (bytes(damaged), noise.randbytes(noise.randrange(200))):
            try:
                decompress(codec, payload, 10_000)
            except ProtocolError:
                continue


def test_gzip_with_a_wrong_checksum_is_refused():
    packed = bytearray(isal_zlib.compress(b"abc" * 100, 1, 31))
    packed[-8] ^= 1

    with pytest.raises(ProtocolError, match="gzip"):
        decompress(Codec.GZIP, packed)


def test_lz4_blocks_that_depend_on_each_other_are_refused():
    packed = lz4.frame.compress(SAMPLES["more than a block"], block_linked=True)

    with pytest.raises(ProtocolError, match="depend on each other"):
        decompress(Codec.LZ4, packed)


def test_xerial_framing_of_a_later_version_is_refused():
    packed = b"\x82SNAPPY\x00" + (2).to_bytes(4, "big") + (2).to_bytes(4, "big")

    with pytest.raises(ProtocolError, match="version 2"):
        decompress(Codec.SNAPPY, packed)


@pytest.mark.parametrize("length", [-1, 1000, 2**31 - 1])
def test_xerial_block_with_an_impossible_length_is_refused(length):
    packed = XERIAL_HEADER + length.to_bytes(4, "big", signed=True) + b"abc"

    with pytest.raises(ProtocolError, match="block of"):
        decompress(Codec.SNAPPY, packed)
