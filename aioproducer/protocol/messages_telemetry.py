"""Messages with which a client pushes its metrics to a broker (KIP-714)."""

from __future__ import annotations

from uuid import UUID

from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.schema import (
    Message,
    array,
    boolean,
    byte_string,
    int8,
    int16,
    int32,
    uuid,
)

MOST_REQUESTED = 10_000
"""The maximum number of metric names or codecs in a response."""


class GetTelemetrySubscriptionsResponse(
    Message, api_key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions=(0, 0), flexible_from=0
):
    """The metrics that the broker wants, the interval, the maximum size, and the accepted codecs."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    client_instance_id: UUID = uuid()
    subscription_id: int = int32()
    accepted_compression_types: list[int] = array("int8", most=MOST_REQUESTED)
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()
    delta_temporality: bool = boolean()
    requested_metrics: list[str] = array("string", most=MOST_REQUESTED)


class GetTelemetrySubscriptionsRequest(
    Message,
    api_key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    versions=(0, 0),
    flexible_from=0,
    response=GetTelemetrySubscriptionsResponse,
):
    """Asks which metrics the broker wants. With the nil id, it also asks for a client instance id."""

    client_instance_id: UUID = uuid()


class PushTelemetryResponse(Message, api_key=ApiKey.PUSH_TELEMETRY, versions=(0, 0), flexible_from=0):
    """The error code, which says whether the broker accepted the metrics."""

    throttle_time_ms: int = int32()
    error_code: int = int16()


class PushTelemetryRequest(
    Message,
    api_key=ApiKey.PUSH_TELEMETRY,
    versions=(0, 0),
    flexible_from=0,
    response=PushTelemetryResponse,
):
    """Metrics in OpenTelemetry's format (OTLP, MetricsData). A client's last request is marked `terminating`."""

    client_instance_id: UUID = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: bytes = byte_string()
