"""Decompression of batches, either strict or as lenient as Kafka's own readers."""

from __future__ import annotations

import pytest

from aioproducer.errors import ProtocolError
from aioproducer.protocol.compression import Codec, compressor
from aioproducer.testing.embedded.decompression import decompress, decompress_as_broker
from tests.support.oracle import OracleRecord, encode_records
from tests.support.raw_client import NOW

PACKED = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


@pytest.mark.parametrize("codec", PACKED)
def test_a_broker_decompresses_what_a_producer_compresses(codec: Codec):
    unpacked = encode_records([OracleRecord(NOW, b"k", b"v" * 1000)])
    packed = compressor(codec, None)(unpacked)

    assert decompress_as_broker(codec, packed) == decompress(codec, packed) == unpacked
    with pytest.raises(ProtocolError, match="more than the 100"):
        decompress_as_broker(codec, packed, 100)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_a_broker_also_decompresses_a_second_part(codec: Codec):
    pack = compressor(codec, None)

    assert decompress_as_broker(codec, pack(b"a" * 2000) + pack(b"b")) == b"a" * 2000 + b"b"
    with pytest.raises(ProtocolError, match="allowed"):
        decompress_as_broker(codec, pack(b"a" * 2000) + pack(b"b"), 2000)
