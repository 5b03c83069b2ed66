"""The handlers for GetTelemetrySubscriptions and PushTelemetry (kafka.server.ClientMetricsManager)."""

from __future__ import annotations

import asyncio

from aioproducer.protocol.compression import Codec
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from aioproducer.protocol.primitives import NIL_UUID
from aioproducer.testing.embedded.decompression import decompress
from aioproducer.testing.embedded.request_context import RequestContext
from aioproducer.testing.embedded.telemetry import Instance, Push


async def get_telemetry_subscriptions(
    context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Assign an id to a client that does not have one, and return the metrics that the cluster requests."""
    error = context.refusal()
    if error is not None:
        return GetTelemetrySubscriptionsResponse(error_code=error)
    telemetry = context.cluster.telemetry
    instance_id = (
        request.client_instance_id if request.client_instance_id != NIL_UUID else context.cluster.new_uuid()
    )
    telemetry.instances.setdefault(instance_id, Instance())
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=telemetry.subscription_id,
        accepted_compression_types=[int(codec) for codec in telemetry.accepted],
        push_interval_ms=telemetry.interval_ms,
        telemetry_max_bytes=telemetry.most_bytes,
        delta_temporality=telemetry.is_delta,
        requested_metrics=list(telemetry.metrics),
    )


async def push_telemetry(context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
    """Store the metrics, unless the client pushes too much, too often, or for an unknown or old subscription."""
    error = context.refusal() or _refusal(context, request)
    if error is None:
        _keep(context, request)
        error = context.late_error()
    return PushTelemetryResponse(error_code=error or ErrorCode.NONE)


def _refusal(context: RequestContext, request: PushTelemetryRequest) -> ErrorCode | None:
    telemetry = context.cluster.telemetry
    if request.client_instance_id == NIL_UUID:
        return ErrorCode.INVALID_REQUEST
    instance = telemetry.instances.setdefault(request.client_instance_id, Instance())
    if instance.has_ended:
        return ErrorCode.INVALID_REQUEST
    now = asyncio.get_running_loop().time()
    if now < instance.pushed_at + telemetry.interval_ms / 1000 * 0.9 and not request.terminating:
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED
    if request.subscription_id != telemetry.subscription_id:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if request.compression_type not in (Codec.NONE, *telemetry.accepted):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if len(request.metrics) > telemetry.most_bytes:
        return ErrorCode.TELEMETRY_TOO_LARGE
    return None


def _keep(context: RequestContext, request: PushTelemetryRequest) -> None:
    telemetry = context.cluster.telemetry
    now = asyncio.get_running_loop().time()
    instance = telemetry.instances[request.client_instance_id]
    instance.pushed_at, instance.has_ended = now, request.terminating
    codec = Codec(request.compression_type)
    telemetry.pushes.append(
        Push(
            context.seen.header.client_id or "",
            request.client_instance_id,
            decompress(codec, request.metrics),
            codec,
            request.terminating,
            now,
        )
    )
