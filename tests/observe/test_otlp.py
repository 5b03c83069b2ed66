"""The bytes of MetricsData, compared with those of OpenTelemetry's generated classes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData

from aioproducer.observe.otlp import Point, metrics_data

TEXTS = st.text(min_size=1, max_size=200)
ATTRIBUTES = st.dictionaries(TEXTS, TEXTS, max_size=4)
POINTS = st.lists(
    st.builds(
        Point,
        TEXTS,
        st.floats(allow_nan=False) | st.integers(0, 2**53).map(float),
        st.booleans(),
        ATTRIBUTES,
    ),
    max_size=8,
    unique_by=lambda point: point.name,
)


def expected(
    points: list[Point], resource: dict[str, str], start: float, now: float, *, is_delta: bool
) -> bytes:
    """Return the same message, encoded by the generated classes."""
    data = MetricsData()
    found = data.resource_metrics.add()
    for name, value in resource.items():
        found.resource.attributes.add(key=name).value.string_value = value
    found.resource.SetInParent()
    scope = found.scope_metrics.add()
    for point in points:
        metric = scope.metrics.add(name=point.name)
        if point.is_sum:
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = (
                AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
                if is_delta
                else AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            )
        of_kind = metric.sum if point.is_sum else metric.gauge
        written = of_kind.data_points.add(time_unix_nano=round(now * 1e9), as_double=point.value)
        if point.is_sum:
            written.start_time_unix_nano = round(start * 1e9)
        for name, value in point.attributes.items():
            written.attributes.add(key=name).value.string_value = value
    return data.SerializeToString()


@given(POINTS, ATTRIBUTES, st.booleans())
def test_the_bytes_are_those_of_the_generated_classes(points, resource, is_delta):
    start, now = 1_700_000_000.25, 1_700_000_300.5

    written = metrics_data(points, resource, start=start, now=now, is_delta=is_delta)

    assert written == expected(points, resource, start, now, is_delta=is_delta)


def test_points_with_the_same_name_are_one_metric():
    points = [
        Point("a", 1.0, True, {"topic": "x"}),
        Point("a", 2.0, True, {"topic": "y"}),
        Point("b", 3.0, False, {}),
    ]
    data = MetricsData.FromString(metrics_data(points, {}, start=1.0, now=2.0, is_delta=False))
    first, second = data.resource_metrics[0].scope_metrics[0].metrics
    assert [point.as_double for point in first.sum.data_points] == [1.0, 2.0]
    assert [point.attributes[0].value.string_value for point in first.sum.data_points] == ["x", "y"]
    assert second.gauge.data_points[0].as_double == 3.0
