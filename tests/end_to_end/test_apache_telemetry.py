"""Metrics pushed to a real Kafka, which passes them to a plugin (KIP-714)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from aioproducer import Producer
from aioproducer.testing.apache.jars import DEFAULT_VERSION
from aioproducer.testing.apache.kafka import ApacheKafka, ApacheKafkaMissingError
from aioproducer.testing.plugin import is_ci
from tests.conftest import at_most
from tests.sending.test_metrics_push import REQUIRED
from tests.support.telemetry_plugin import compiled

pytestmark = [pytest.mark.slow, pytest.mark.apache]


@asynccontextmanager
async def collecting(directory: Path) -> AsyncIterator[tuple[ApacheKafka, Path]]:
    """A real Kafka that requests all metrics every second, and the directory to which its plugin writes them."""
    received = directory / "received"
    received.mkdir()
    try:
        async with ApacheKafka():  # fetches the jars, which the compiler needs
            pass
        plugin = await asyncio.to_thread(compiled, DEFAULT_VERSION, directory)
        async with ApacheKafka(
            config={"metric.reporters": "KeepsTelemetry"},
            jvm_args=("-Xmx384m", f"-Dkeeps.telemetry.in={received}"),
            plugins=[plugin],
        ) as kafka:
            await kafka.run_tool(
                "org.apache.kafka.tools.ClientMetricsCommand",
                *("--bootstrap-server", kafka.bootstrap_servers, "--alter", "--name", "all"),
                *("--metrics", "*", "--interval", "1000"),
            )
            await kafka.create_topic("orders", 1, 1)
            yield kafka, received
    except ApacheKafkaMissingError as error:
        if is_ci():
            raise
        pytest.skip(str(error))


class Received(NamedTuple):
    """One push."""

    instance_id: str
    kind: str
    """ "last" or "more"."""
    values: dict[str, dict[str, float]]
    """Keyed by the metric's name without its prefix, then by the values of the attributes."""
    attributes: dict[str, list[dict[str, str]]]


def pushes(received: Path, client_id: str) -> Iterator[Received]:
    """Return the pushes of a client, in order."""
    for file in sorted(received.glob(f"* {client_id} *")):
        if file.suffix == ".partial":
            continue
        _, _, instance_id, kind = file.name.split(" ")
        values: dict[str, dict[str, float]] = {}
        attributes: dict[str, list[dict[str, str]]] = {}
        for resource in MetricsData.FromString(file.read_bytes()).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    name = metric.name.removeprefix("org.apache.kafka.producer.")
                    for point in metric.sum.data_points or metric.gauge.data_points:
                        of = {one.key: one.value.string_value for one in point.attributes}
                        values.setdefault(name, {})[",".join(of.values())] = point.as_double
                        attributes.setdefault(name, []).append(of)
        yield Received(instance_id, kind, values, attributes)


@pytest.mark.promise(
    "Observability", "KIP-714: a real Kafka accepts the pushes, the last one at close() included"
)
async def test_a_real_kafka_receives_the_metrics_that_javas_producer_would_send(tmp_path):
    async with collecting(tmp_path) as (kafka, received):
        producer = Producer(kafka.bootstrap_servers, client_id="ours")
        await producer.start()
        for _ in range(5):
            await producer.send_and_wait("orders", b"v")
        await producer.client_instance_id()
        async with at_most(30):
            while len(list(pushes(received, "ours"))) < 2:  # noqa: ASYNC110  # brokers set no events
                await asyncio.sleep(0.05)
        await producer.send_and_wait("orders", b"v")
        await producer.close()
        await kafka.run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", "orders", "--num-records", "400", "--record-size", "10", "--throughput", "100"),
            *("--producer-props", f"bootstrap.servers={kafka.bootstrap_servers}", "client.id=javas"),
        )

    ours = list(pushes(received, "ours"))
    assert [push.kind for push in ours] == ["more"] * (len(ours) - 1) + ["last"]
    assert len({push.instance_id for push in ours}) == 1
    assert sum(push.values["record.send.total"][""] for push in ours) == 6, "Kafka requests deltas"
    assert all(push.values["node.request.latency.max"] for push in ours)

    javas = list(pushes(received, "javas"))
    names = {name for push in javas for name in push.values}
    assert names > REQUIRED
    assert {name for push in ours for name in push.values} - names == set()
    for name in ("node.request.latency.avg", "topic.record.send.total"):
        [attributes] = ours[0].attributes[name]
        assert attributes in javas[-1].attributes[name], "Java also names bootstrap addresses"
