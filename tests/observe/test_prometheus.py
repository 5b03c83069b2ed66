"""The Prometheus collector: scrapes over HTTP and checks by promtool; the alert rules and the dashboard."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from aioproducer.errors import InvalidRecordError
from aioproducer.observe.families import FAMILIES, SECONDS
from aioproducer.observe.prometheus import _cumulated, _empty
from aioproducer.observe.snapshots import Distribution
from aioproducer.prometheus import ProducerCollector
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.plugin import is_ci
from tests.support.producing import PRODUCE, error_of, producing, quick_producer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProducerCollector(registry)
    return registry


@pytest.fixture
def promtool() -> str:
    found = shutil.which(
        "promtool", path=f"{ROOT / 'build' / 'promtool' / 'usr' / 'bin'}:{os.environ['PATH']}"
    )
    if found is None:
        assert not is_ci() or os.environ.get("PROMTOOL_TESTS") == "0", "make promtool fetches it"
        pytest.skip("there is no promtool: make promtool fetches it")
    return found


def samples(text: str, client_id: str) -> Samples:
    """Return the samples of one producer, keyed by their names and their labels other than client_id."""
    return {
        (sample.name, frozenset((set(sample.labels.items())) - {("client_id", client_id)})): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("client_id") == client_id
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[f"aioproducer_{name}", frozenset(labels.items())]


async def test_a_scrape_shows_what_the_producer_has_done(registry):
    async with producing(client_id="scraped", topics={"orders": 1}) as (cluster, producer):
        for number in range(5):
            await producer.send_and_wait("orders", b"%d" % number)
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS)
        await producer.send_and_wait("orders", b"6")
        cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        await error_of(await producer.send("orders", b"7"))
        with pytest.raises(InvalidRecordError):
            await producer.send("orders", 5)
        found = samples(generate_latest(registry).decode(), "scraped")

    assert value(found, "producers", state="running") == 1
    assert value(found, "records_acked_total", topic="orders") == 6
    assert value(found, "records_failed_total", topic="orders", outcome="not_persisted") == 1
    assert value(found, "records_failed_total", topic="orders", outcome="unknown") == 0
    assert value(found, "records_rejected_total", error="InvalidRecordError") == 1
    assert value(found, "retries_total", topic="orders") == 1
    assert value(found, "errors_total", error="NOT_ENOUGH_REPLICAS") == 1
    assert value(found, "time_to_result_seconds_count") == 7
    assert value(found, "time_to_ack_seconds_count") == 6
    assert value(found, "time_to_ack_seconds_bucket", le="+Inf") == 6
    assert value(found, "node_connected", node="0") == 1
    assert value(found, "node_request_seconds_count", node="0") >= 8
    assert value(found, "buffer_available_bytes") == value(found, "buffer_bytes")
    assert value(found, "oldest_unacked_seconds") == 0


async def test_transactions_are_exported_by_call_and_result(registry):
    async with producing(client_id="tx-scraped", transactional_id="tx") as (_, producer):
        async with producer.transaction():
            await producer.send("t", b"v")
        found = samples(generate_latest(registry).decode(), "tx-scraped")
    assert value(found, "transaction_calls_total", call="commit", result="success") == 1
    assert value(found, "transaction_calls_total", call="commit", result="failure") == 0
    assert value(found, "transaction_call_seconds_count", call="commit") == 1


async def test_producers_with_the_same_client_id_are_added_up_and_others_are_separate(registry):
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        producers = [quick_producer(cluster, client_id=name) for name in ("same", "same", "other")]
        for count, producer in enumerate(producers, 2):
            await producer.start()
            for _ in range(count):
                await producer.send_and_wait("t", b"v")
        text = generate_latest(registry).decode()
        for producer in producers:
            await producer.close()
    same, others = samples(text, "same"), samples(text, "other")
    assert value(same, "records_acked_total", topic="t") == 5
    assert value(same, "producers", state="running") == 2
    assert value(same, "time_to_ack_seconds_count") == 5
    assert value(others, "records_acked_total", topic="t") == 4


async def test_topics_can_be_left_out():
    registry = CollectorRegistry()
    ProducerCollector(registry, topics=False)
    async with producing(client_id="no-topics", topics={"a": 1, "b": 1}) as (_, producer):
        for topic in ("a", "b", "b"):
            await producer.send_and_wait(topic, b"v")
        found = samples(generate_latest(registry).decode(), "no-topics")
    assert value(found, "records_acked_total", topic="") == 3


def test_counts_are_cumulative_up_to_each_bound():
    values = Distribution(6, 10.0, 300.0, ((2**-14, 1), (2**-2.25, 2), (0.25, 1), (256.0, 1), (2**8.25, 1)))
    found = dict(_cumulated(values, SECONDS))
    assert found[repr(SECONDS[0])] == 1
    assert found["0.125"] == 1
    assert found["0.25"] == 4
    assert found["256.0"] == 5
    assert found["+Inf"] == 6


def test_without_the_extra_the_error_names_it():
    code = "import sys; sys.modules['prometheus_client'] = None; import aioproducer.prometheus"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "aioproducer[prometheus]"' in ended.stderr.splitlines()[-1]


def test_a_registry_accepts_only_one_collector(registry):
    with pytest.raises(ValueError, match="Duplicated"):
        ProducerCollector(registry)


@pytest.fixture
def served(registry: CollectorRegistry) -> Iterator[str]:
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.promise("Observability", "Prometheus scrapes all producers, and promtool accepts the page")
async def test_promtool_accepts_a_scrape_over_http_while_records_are_sent(served, promtool):
    pages: list[httpx.Response] = []
    is_enough = threading.Event()

    def scrape() -> None:
        with httpx.Client() as client:
            while not is_enough.is_set():
                pages.append(client.get(served))

    async with producing(client_id="http", topics={f"t{number}": 3 for number in range(40)}) as (_, producer):
        scraping = threading.Thread(target=scrape)
        scraping.start()
        try:
            while len(pages) < 5:
                for number in range(200):
                    await producer.send(f"t{number % 40}", b"v")
                await producer.flush()
        finally:
            is_enough.set()
            scraping.join()

    assert {page.status_code for page in pages} == {200}
    acked = [
        sum(
            number
            for (name, _), number in samples(page.text, "http").items()
            if name.endswith("_acked_total")
        )
        for page in pages
    ]
    assert acked == sorted(acked)
    assert acked[-1] > 0
    checked = await asyncio.to_thread(
        subprocess.run, [promtool, "check", "metrics"], input=pages[-1].content, capture_output=True
    )
    assert checked.returncode == 0, checked.stderr


# --------------------------------------------------------------------------------- the docs, rules and dashboard


def names() -> set[str]:
    """Return the names of all samples."""
    found = set()
    for family in FAMILIES:
        metric = _empty(family)
        suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}[
            metric.type
        ]
        found |= {metric.name + suffix for suffix in suffixes}
    return found


def used_in(text: str) -> set[str]:
    return set(re.findall(r"\baioproducer_\w+", text))


def test_the_alert_rules_are_tested_by_promtool(promtool):
    played = subprocess.run(
        [promtool, "test", "rules", "alerts_test.yml"],
        cwd=DOCS / "prometheus",
        capture_output=True,
        text=True,
    )
    assert played.returncode == 0, played.stdout + played.stderr
    rules = re.findall(r"- alert: (\w+)", (DOCS / "prometheus" / "alerts.yml").read_text())
    tests = (DOCS / "prometheus" / "alerts_test.yml").read_text()
    assert len(rules) >= 8
    for rule in rules:
        assert f"alertname: {rule}, exp_alerts: []" in tests, "no test that it stays silent without a reason"
        assert re.search(rf"alertname: {rule}\n\s+exp_alerts:\n", tests), (
            "no test that it fires with a reason"
        )


@pytest.mark.parametrize("file", ["alerts.yml", "alerts_test.yml", "grafana.json"])
def test_rules_and_dashboard_use_metrics_that_exist(file):
    used = used_in((DOCS / "prometheus" / file).read_text())
    assert used
    assert used - names() == set()


def test_each_panel_of_the_dashboard_has_a_query_that_prometheus_accepts(promtool, tmp_path):
    panels = json.loads((DOCS / "prometheus" / "grafana.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) >= len(panels) >= 12
    rules = [
        {
            "record": f"query:{number}",
            "expr": query.replace("$__rate_interval", "5m").replace("$client_id", ".*"),
        }
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    checked = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_guide_lists_each_metric_with_its_type_labels_and_text():
    page = (DOCS / "prometheus.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.+?) \|$", page, re.MULTILINE)
    expected = []
    for family in FAMILIES:
        metric = _empty(family)
        name = metric.name + ("_total" if metric.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric._labelnames[1:])
        expected.append((name, metric.type, labels, metric.documentation))
    assert rows == expected
    assert math.isfinite(SECONDS[-1])
