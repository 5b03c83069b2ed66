"""Real clusters that several tests share: started before the first of them, ended after the last.

A fixture of scope "module" or "session" yields from `running`, on a loop of its own, since tests have a loop each.
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
"""Settings of three brokers that are made to fail."""

LEAN = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A JVM that starts soon, for a broker that has little to do."""
SHARED = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""The same with memory for all tests of a session."""


@contextmanager
def running(
    kafka: ApacheKafka,
    prepare: Callable[[ApacheKafka], Awaitable[None]] | None = None,
    *,
    request: pytest.FixtureRequest | None = None,
) -> Iterator[ApacheKafka]:
    """A block with a cluster that is up, in which `prepare` has made its topics.

    Without what it takes to run one, the tests are skipped, and in CI (CI=true) they fail. If tests fail in
    the block, the brokers' logs are kept; `request`, the fixture's, tells.
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
    assert not command_lines(str(kafka.directory)), "processes are left"


def failures(request: pytest.FixtureRequest | None) -> int:
    """How many tests of the session have failed."""
    return 0 if request is None else request.session.testsfailed
