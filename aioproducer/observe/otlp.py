"""Writes metrics in OpenTelemetry's format: the bytes of a protobuf MetricsData message.

The encoding is written by hand, because only a few message types are needed and the package with the generated classes
depends on protobuf. The tests compare the bytes with the output of the generated classes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES = 0, 1, 2
"""Protobuf's wire types."""
DELTA, CUMULATIVE = 1, 2
"""The values of AggregationTemporality."""


class Point(NamedTuple):
    """One value of a metric."""

    name: str
    value: float
    is_sum: bool
    """Whether the metric is a monotonic sum; otherwise it is a gauge."""
    attributes: Mapping[str, str]


def metrics_data(
    points: Iterable[Point], resource: Mapping[str, str], *, start: float, now: float, is_delta: bool
) -> bytes:
    """Return MetricsData with all points. Consecutive points with the same name become one metric.

    Args:
        points: the values.
        resource: the attributes of the client.
        start: the wall-clock time from which the sums are counted.
        now: the wall-clock time of the values.
        is_delta: whether the sums count only the changes since the last message.
    """
    started, taken = round(start * 1e9), round(now * 1e9)
    metrics = bytearray()
    group: list[Point] = []
    for point in points:
        if group and point.name != group[0].name:
            metrics += _message(2, _metric(group, started, taken, is_delta=is_delta))
            group = []
        group.append(point)
    if group:
        metrics += _message(2, _metric(group, started, taken, is_delta=is_delta))
    scope_metrics = _message(2, bytes(metrics))
    return _message(1, _message(1, _attributes(1, resource)) + scope_metrics)


def _metric(points: list[Point], start: int, now: int, *, is_delta: bool) -> bytes:
    is_sum = points[0].is_sum
    data = b"".join(_message(1, _data_point(point, start, now)) for point in points)
    if is_sum:
        data += _varint(2 << 3 | _VARINT) + _varint(DELTA if is_delta else CUMULATIVE)
        data += _varint(3 << 3 | _VARINT) + b"\x01"
    return _message(1, points[0].name.encode()) + _message(7 if is_sum else 5, data)


def _data_point(point: Point, start: int, now: int) -> bytes:
    data = _fixed64(2, start) if point.is_sum else b""
    data += _fixed64(3, now)
    data += _varint(4 << 3 | _FIXED64) + struct.pack("<d", point.value)
    return data + _attributes(7, point.attributes)


def _attributes(field: int, attributes: Mapping[str, str]) -> bytes:
    return b"".join(
        _message(field, _message(1, name.encode()) + _message(2, _message(1, value.encode())))
        for name, value in attributes.items()
    )


def _fixed64(field: int, value: int) -> bytes:
    return _varint(field << 3 | _FIXED64) + value.to_bytes(8, "little")


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
