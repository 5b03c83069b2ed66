"""Text that is split into lines: keys, values, nulls, and the records that send_many makes of them."""

from __future__ import annotations

import random

import pytest

from aioproducer import Producer
from aioproducer.records._record_path import split_lines
from aioproducer.testing import EmbeddedCluster


def split_by_python(data, delimiter, null):
    parts = [line.partition(delimiter) for line in data.split(b"\n")]
    keys = [key if found else None for key, found, _ in parts]
    values = [value if found else key for key, found, value in parts]
    return [None if key == null else key for key in keys], [
        None if value == null else value for value in values
    ]


@pytest.mark.parametrize("delimiter", [b":", b"::", b":-:"])
@pytest.mark.parametrize("null", [None, b"", b"-", b"--"])
def test_lines_are_split_as_in_python(delimiter, null):
    chance = random.Random(repr((delimiter, null)))
    for _ in range(300):
        data = bytes(chance.choice(b"::--a\n") for _ in range(chance.randrange(40)))

        keys, values = split_lines(data, delimiter, null)

        assert (list(keys), list(values)) == split_by_python(data, delimiter, null), data


def test_without_a_delimiter_each_line_is_a_value():
    keys, values = split_lines(b"a:b\n\n\xff\r\n")

    assert keys is None
    assert list(values) == [b"a:b", b"", b"\xff\r", b""]


def test_an_empty_delimiter_is_refused():
    with pytest.raises(ValueError, match="the delimiter is empty"):
        split_lines(b"a", b"")


def test_slices_can_be_sliced_again():
    _, values = split_lines(b"0\n1\n2\n3\n4")

    part = values.slice(1, 3).slice(1, 100)

    assert list(part) == [b"2", b"3"]
    assert (part[0], len(part), len(values.slice(5, 1)), len(values.slice(9, 9))) == (b"2", 2, 0, 0)
    for index in (-1, 2):
        with pytest.raises(IndexError):
            part[index]


async def test_send_many_sends_each_line_as_a_record():
    text = b"\n".join(b"key %d=value %d" % (number, number) for number in range(5_000)) + b"\n-=-\nno key"
    async with EmbeddedCluster(topics={"t": 1}) as cluster, Producer(cluster.bootstrap_servers) as producer:
        keys, values = split_lines(text, b"=", b"-")

        receipt = await producer.send_many("t", values.slice(1, 6_000), keys=keys.slice(1, 6_000))
        await receipt.wait()

        assert not receipt.errors
        assert [(record.key, record.value) for record in cluster.records("t")] == [
            *((b"key %d" % number, b"value %d" % number) for number in range(1, 5_000)),
            (None, None),
            (None, b"no key"),
        ]


@pytest.mark.parametrize("argument", ["headers", "timestamps", "partitions"])
async def test_lines_can_only_be_keys_and_values(argument):
    _, lines = split_lines(b"1\n2")
    async with EmbeddedCluster(topics={"t": 1}) as cluster, Producer(cluster.bootstrap_servers) as producer:
        with pytest.raises(ValueError, match=f"{argument} must be a list, or Arrow data"):
            await producer.send_many("t", [b"v", b"w"], **{argument: lines})
