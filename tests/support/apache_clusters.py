"""Real clusters shared by several tests: started before the first test, stopped after the last.

A "module"- or "session"-scoped fixture yields from `running`, which has its own event loop, since a test's loop ends
with the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from aioproducer.testing.apache.kafka import ApacheKafka, ApacheKafkaMissingError
from aioproducer.testing.plugin import is_ci, tell_of_logs
from tests.support.apache_processes import command_lines

NOTICES_SOON = {
    "min.insync.replicas": 2,
    "auto.create.topics.enable": False,
    # A dead or frozen broker is noticed after 3 s, a dead controller after 1.5 s.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 300,
    "controller.quorum.fetch.timeout.ms": 1500,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.election.backoff.max.ms": 300,
    "controller.quorum.request.timeout.ms": 1000,
    "replica.lag.time.max.ms": 2000,
    "replica.fetch.wait.max.ms": 200,
    "replica.socket.timeout.ms": 2000,
}
"""Settings for clusters of three brokers in which tests make brokers fail."""

LEAN = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""JVM options for a broker that has little to do: it starts fast."""
SHARED = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""The same, but with enough memory for all tests of a session."""


@contextmanager
def running(
    kafka: ApacheKafka,
    prepare: Callable[[ApacheKafka], Awaitable[None]] | None = None,
    *,
    request: pytest.FixtureRequest | None = None,
) -> Iterator[ApacheKafka]:
    """Run a block with a started cluster, in which `prepare` has created the topics.

    If Kafka or Java is missing, the tests are skipped, or fail in CI (CI=true). If the fixture's `request` is
    passed, the brokers' logs are kept when tests fail in the block.
    """

    async def start() -> None:
        await kafka.start()
        if prepare is not None:
            await prepare(kafka)

    failed_before = failures(request)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        try:
            try:
                runner.run(start())
            except ApacheKafkaMissingError as error:
                if is_ci():
                    raise
                pytest.skip(str(error))
            yield kafka
        finally:
            has_failed = failures(request) > failed_before
            runner.run(kafka.stop(keep_logs=has_failed))
            if request is not None and has_failed:
                tell_of_logs(request.config, kafka.directory)
    assert has_failed or not kafka.directory.exists()
    assert not command_lines(str(kafka.directory)), "broker processes are still running"


def failures(request: pytest.FixtureRequest | None) -> int:
    """The number of tests that have failed in this session."""
    return 0 if request is None else request.session.testsfailed
