"""One pass over the records of a batch, compared with the decoder."""

from __future__ import annotations

import pytest

from aioproducer.errors import ProtocolError
from aioproducer.protocol.recordbatch import read_header, read_records
from aioproducer.testing.embedded.record_scan import scan_records
from tests.support.conformance.crafted import batch_of_payload, record
from tests.support.oracle import OracleRecord, encode_batch
from tests.support.raw_client import NOW


def test_a_scan_finds_the_same_records_as_the_decoder():
    records = [
        OracleRecord(NOW + index, bytes(index) or None, bytes(3 * index), (("h", None), ("i", bytes(index))))
        for index in range(200)
    ]
    batch = encode_batch(records)

    scanned = scan_records(batch[61:], read_header(batch))

    read = list(read_records(batch[61:], read_header(batch)))
    assert scanned.timestamps == [found.timestamp for found in read]
    assert scanned.keyless == [index for index, found in enumerate(read) if found.key is None]
    assert scanned.are_numbered
    assert len(scanned.bodies) == 200


@pytest.mark.promise(
    "Test clusters", "the embedded cluster checks batches and their records in Kafka's order"
)
def test_every_truncation_and_every_changed_byte_is_rejected_or_read():
    payload = record(b"value", key=b"key", headers=b"\x02\x02h\x02v")
    header = read_header(batch_of_payload(payload))

    for end in range(len(payload)):
        with pytest.raises(ProtocolError):
            scan_records(payload[:end], header)
    for at in range(len(payload)):
        for flip in (0x01, 0x80, 0xFF):
            try:
                scan_records(payload[:at] + bytes([payload[at] ^ flip]) + payload[at + 1 :], header)
            except ProtocolError:
                pass  # no other exception
