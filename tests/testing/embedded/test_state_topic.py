"""Internal topics whose leaders coordinate: where a key lives, and who knows what its log says."""

from __future__ import annotations

import pytest

from aioproducer.testing.embedded.state_topic import partition_for


@pytest.mark.parametrize(
    ("key", "partition"),
    # Hash codes 0, 97, 99162322, -862545276 and the smallest int, which Kafka takes for 0.
    [("", 0), ("a", 47), ("hello", 22), ("Hello World", 26), ("polygenelubricants", 0)],
)
def test_the_partition_of_a_key_is_that_of_javas_hash_code(key, partition):
    assert partition_for(key, 50) == partition
