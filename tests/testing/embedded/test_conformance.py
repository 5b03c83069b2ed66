"""The embedded cluster and Apache Kafka receive the same requests, and the same assertions check their answers."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import sys

import pytest

from aioproducer.testing import ApacheKafka, EmbeddedCluster
from tests.support.conformance.suite import CASES, RELEASES, Case, Target, prepare

CASE_MODULES = [
    f"tests.support.conformance.{name}"
    for name in (
        "batches codecs records idempotence targets metadata producers new_topics reading groups connections".split()
    )
]
# pytest does not rewrite the assertions in these modules by default, because they are not test modules.
pytest.register_assert_rewrite(*(name for name in CASE_MODULES if name not in sys.modules))
for name in CASE_MODULES:
    importlib.import_module(name)  # fills CASES

EMBEDDED, REAL = "embedded", "real"
KAFKAS = {"apache_kafka": "4.3", "apache_kafka_39": "3.9"}
"""The fixtures of real brokers, with their releases."""

ran: set[tuple[str, str, str]] = set()
"""The cases that have run to completion: the kind and release of the cluster, and the name of the case."""


@pytest.fixture(scope="module")
def apache(each_kafka: ApacheKafka) -> Target:
    """A real broker with the topics of all cases."""
    release = each_kafka.version.rpartition(".")[0]
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(prepare(each_kafka.bootstrap_servers, release, CASES.values()))


each_case = pytest.mark.parametrize("one", CASES.values(), ids=lambda one: one.name)


@pytest.mark.promise(
    "Test clusters", "the embedded cluster and Apache Kafka 4.3.1 and 3.9.2 pass the same raw requests"
)
@pytest.mark.apache
@each_case
async def test_a_real_kafka_answers_as_in_the_case(one: Case, apache: Target):
    await apache.check(one)
    ran.add((REAL, apache.release, one.name))


@pytest.mark.promise("Test clusters", "the embedded cluster answers as Kafka does")
@pytest.mark.promise(
    "Test clusters", "the embedded cluster and Apache Kafka 4.3.1 and 3.9.2 pass the same raw requests"
)
@pytest.mark.parametrize("release", RELEASES)
@each_case
async def test_the_embedded_broker_answers_as_kafka_does(one: Case, release: str):
    async with EmbeddedCluster(versions=release) as cluster:
        target = await prepare(
            cluster.bootstrap_servers,
            release,
            [one],
            lambda client_id, rate: cluster.set_quota(client_id, producer_byte_rate=rate),
        )
        await target.check(one)
    ran.add((EMBEDDED, release, one.name))


def chosen(item: pytest.Item) -> tuple[str, str, str] | None:
    """The cluster and the case of a test; None for other tests."""
    if isinstance(item, pytest.Function) and item.module.__name__.endswith("test_conformance"):
        if hasattr(item, "callspec") and "one" in item.callspec.params:
            params = item.callspec.params
            if "release" in params:
                return EMBEDDED, params["release"], params["one"].name
            return REAL, KAFKAS[params["each_kafka"]], params["one"].name
    return None


def deselected(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """The tests that a mark or a name keeps from running, e.g. those that `make test` leaves to `make test-all`."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    return reporter.stats.get("deselected", [])


@pytest.mark.promise(
    "Test clusters", "the embedded cluster and Apache Kafka 4.3.1 and 3.9.2 pass the same raw requests"
)
def test_at_least_60_cases_ran_on_every_cluster(request: pytest.FixtureRequest):
    wanted = {found for found in map(chosen, request.session.items) if found is not None}
    if any(kind == REAL for kind, _, _ in wanted):
        request.getfixturevalue("apache_kafka")  # skips if Kafka can't run: then no case has run on it

    assert len(CASES) >= 60
    assert ran == wanted
    if not any("::" in argument for argument in request.config.args):
        left_out = {found for found in map(chosen, deselected(request)) if found is not None}
        assert wanted | left_out == set(itertools.product((EMBEDDED, REAL), RELEASES, CASES))
