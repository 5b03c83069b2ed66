"""The embedded brokers' answers to GetTelemetrySubscriptions and PushTelemetry, over a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.compression import Codec
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
)
from aioproducer.protocol.primitives import NIL_UUID
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.telemetry_requests import get_telemetry_subscriptions, push_telemetry
from tests.support.raw_client import RawClient, address

APIS = {
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: get_telemetry_subscriptions,
    ApiKey.PUSH_TELEMETRY: push_telemetry,
}


@asynccontextmanager
async def client(**options: object) -> AsyncIterator[tuple[EmbeddedCluster, RawClient]]:
    async with EmbeddedCluster(1, **options) as cluster:
        async with RawClient(address(cluster)) as raw:
            yield cluster, raw


async def asked(raw: RawClient, instance_id: UUID = NIL_UUID) -> GetTelemetrySubscriptionsResponse:
    return await raw.ask(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)


async def pushed(raw: RawClient, subscription: GetTelemetrySubscriptionsResponse, **changes: object) -> int:
    fields = {
        "client_instance_id": subscription.client_instance_id,
        "subscription_id": subscription.subscription_id,
        "metrics": b"metrics",
        **changes,
    }
    return (await raw.ask(PushTelemetryRequest(**fields), 0)).error_code


@pytest.mark.parametrize(
    ("options", "is_offered"),
    [
        ({"collects_metrics": True}, True),
        ({}, False),
        ({"collects_metrics": True, "versions": "3.6"}, False),
        ({"collects_metrics": True, "versions": "3.7"}, True),
    ],
)
async def test_only_brokers_that_collect_metrics_offer_the_apis(options, is_offered):
    async with client(**options) as (_, raw):
        offered = {row.api_key for row in (await raw.ask(ApiVersionsRequest(), 0)).api_keys}
    assert (offered >= set(APIS)) is is_offered


async def test_a_client_gets_an_id_once_and_the_subscription():
    async with client(collects_metrics=True) as (cluster, raw):
        cluster.telemetry.subscribe(["a.", "b."], interval_ms=1000, most_bytes=99, accepted=[Codec.LZ4])
        first = await asked(raw)
        again = await asked(raw, first.client_instance_id)
    assert first.client_instance_id != NIL_UUID
    assert again == first
    assert first.requested_metrics == ["a.", "b."]
    assert (first.push_interval_ms, first.telemetry_max_bytes) == (1000, 99)
    assert (first.accepted_compression_types, first.delta_temporality) == ([3], True)


async def test_pushed_metrics_are_kept():
    async with client(collects_metrics=True) as (cluster, raw):
        subscription = await asked(raw)
        assert await pushed(raw, subscription) == 0
        assert await pushed(raw, subscription, terminating=True, metrics=b"the last") == 0
    assert [(push.data, push.is_last) for push in cluster.telemetry.pushes] == [
        (b"metrics", False),
        (b"the last", True),
    ]


async def test_invalid_pushes_are_rejected():
    async with client(collects_metrics=True) as (cluster, raw):
        cluster.telemetry.subscribe([""], most_bytes=10, accepted=[Codec.GZIP])
        subscription = await asked(raw)
        for changes, error in (
            ({"client_instance_id": NIL_UUID}, ErrorCode.INVALID_REQUEST),
            ({"subscription_id": 5}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
            ({"compression_type": int(Codec.LZ4)}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
            ({"metrics": b"12345678901"}, ErrorCode.TELEMETRY_TOO_LARGE),
            ({}, ErrorCode.NONE),
            ({}, ErrorCode.THROTTLING_QUOTA_EXCEEDED),
            ({"client_instance_id": uuid4()}, ErrorCode.NONE),
            ({"terminating": True}, ErrorCode.NONE),
            ({"terminating": True}, ErrorCode.INVALID_REQUEST),
        ):
            assert await pushed(raw, subscription, **changes) == error, changes
    assert len(cluster.telemetry.pushes) == 3
