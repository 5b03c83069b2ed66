"""The reader of DumpLogSegments output is strict: any doubtful line fails a test on a real Kafka cluster."""

from __future__ import annotations

import pytest

from tests.support.apache_log import DumpedBatch, DumpedRecord, assert_sequences_continue, parsed

pytestmark = pytest.mark.slow

# Printed by Kafka 4.3.1.
DUMPED = """\
Dumping /data/node-0/data/a-topic-7/00000000000000000000.log
Log starting offset: 0
baseOffset: 0 lastOffset: 1 count: 2 baseSequence: 0 lastSequence: 1 producerId: 5 producerEpoch: 0 \
partitionLeaderEpoch: 0 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty \
position: 0 CreateTime: 1795292240951 size: 256 magic: 2 compresscodec: zstd crc: 1576625105 isvalid: true
| offset: 0 CreateTime: 1795292240950 keySize: 2 valueSize: 27 sequence: 0 headerKeys: [naïve,b]
| offset: 1 CreateTime: 1795292240951 keySize: -1 valueSize: 0 sequence: 1 headerKeys: []
"""


def test_batches_and_records_are_read():
    records = [
        DumpedRecord(0, 1795292240950, 2, 27, 0, "naïve,b"),
        DumpedRecord(1, 1795292240951, -1, 0, 1, ""),
    ]

    assert parsed(DUMPED) == {
        7: [DumpedBatch(0, 1, 2, 0, 1, 5, 0, False, False, "zstd", 1576625105, records)]
    }


@pytest.mark.promise("Test clusters", "Kafka's own tool finds every batch valid, and no gap in any sequence")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("isvalid: true", "isvalid: false"),
        ("count: 2", "count: 3"),
        ("magic: 2", "magic: 1"),
        ("Log starting offset: 0", "Found 8 invalid bytes at the end of 0.log"),
    ],
)
def test_doubtful_output_of_kafkas_tool_fails_a_test(line, said):
    with pytest.raises(AssertionError):
        parsed(DUMPED.replace(line, said))


@pytest.mark.promise("Test clusters", "Kafka's own tool finds every batch valid, and no gap in any sequence")
@pytest.mark.parametrize(
    ("first", "second"), [((0, 0), (0, 3)), ((0, 0), (0, 1)), ((0, 1), (0, 3)), ((0, 0), (1, 2))]
)
def test_a_gap_in_the_sequence_fails_a_test(first, second):
    with pytest.raises(AssertionError):
        assert_sequences_continue([batch(*first), batch(*second)])


@pytest.mark.parametrize(("first", "second"), [((0, 0), (0, 2)), ((0, 0), (1, 0))])
def test_a_sequence_continues_and_a_new_epoch_begins_at_0(first, second):
    assert_sequences_continue([batch(*first), batch(*second)])


def batch(epoch: int, sequence: int) -> DumpedBatch:
    """Return a batch of two records, numbered from `sequence`."""
    records = [DumpedRecord(0, 0, 0, 0, number, "") for number in (sequence, sequence + 1)]
    return DumpedBatch(0, 1, 2, sequence, sequence + 1, 5, epoch, False, False, "none", 0, records)
