"""Sessions that end: the open connection re-authenticates, and nothing is lost, reordered or written in between."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator

import pytest

from aioproducer import Producer
from aioproducer.errors import AuthenticationError, BrokerConnectionError
from aioproducer.network.connection import Connection
from aioproducer.network.connection_state import ConnectionState
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    MetadataRequest,
    MetadataResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from aioproducer.security import authentication, sasl
from aioproducer.security.sasl import OAuthToken
from aioproducer.testing import EmbeddedCluster, Security
from aioproducer.testing.embedded import broker_security
from aioproducer.testing.simulation.loop import simulate
from tests.conftest import MS, in_virtual_time
from tests.support.certificates import authority_pem, server_context
from tests.support.producing import QUICK
from tests.support.scripted_broker import (
    LONG,
    Peer,
    ScriptedBroker,
    make_connection,
    silence,
    until,
)

PLAIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_without_tls": True,
    "sasl_plain_username": "alice",
    "sasl_plain_password": "alice-secret",
}
USERS = {"alice": "alice-secret"}
SASL = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


@pytest.fixture
def short_sessions(monkeypatch):
    """Allow sessions of a tenth of a second, although Kafka requires a second between two authentications."""
    monkeypatch.setattr(authentication, "SHORTEST_SESSION", 0.005)
    monkeypatch.setattr(broker_security, "PAUSE_BETWEEN_AUTHENTICATIONS", 0.0)


# ------------------------------------------------------------------------------------------------- under load


@pytest.mark.promise(
    "Security", "a session is re-authenticated in time, and nothing else is written meanwhile (KIP-368)"
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
@pytest.mark.usefixtures("short_sessions")
async def test_under_load_nothing_is_lost_or_reordered_and_no_connection_breaks(mechanism):
    life = 150 * MS
    given = {
        "PLAIN": PLAIN,
        "SCRAM-SHA-256": {**PLAIN, "sasl_mechanism": "SCRAM-SHA-256"},
        "OAUTHBEARER": {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": lambda: OAuthToken(jws(), 3600.0),
        },
    }[mechanism]
    if mechanism != "OAUTHBEARER":
        given = {**given, "sasl_plain_without_tls": mechanism == "PLAIN"}
    security = Security(mechanisms=[mechanism], users=USERS, session_lifetime=life, session_slack=LONG)
    count = 0
    async with EmbeddedCluster(brokers=2, topics={"t": 2}, security=security) as cluster:
        settings = {
            **QUICK,
            "linger_ms": 1,
            "batch_size": 2000,
            "request_timeout_ms": 3_000_000 * MS,
            **given,
        }
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            loop = asyncio.get_running_loop()
            began = loop.time()
            deliveries = []
            # Long enough for two connections to be authenticated several times each.
            while loop.time() < began + 8 * life or (
                len(security.authentications) < 2 * 3 and loop.time() < began + 4 * LONG
            ):
                for _ in range(20):
                    deliveries.append(await producer.send("t", b"%d" % count, partition=count % 2))
                    count += 1
                await asyncio.sleep(1 * MS)
            await asyncio.wait_for(asyncio.gather(*deliveries), LONG)
            nodes = producer.metrics().nodes

        for partition in (0, 1):
            values = [int(record.value) for record in cluster.records("t", partition)]
            assert values == list(range(partition, count, 2))
        assert len(security.authentications) >= 2 * 3
        assert security.failures == 0
        assert sum(node.disconnects for node in nodes if node.node_id >= 0) == 0


def jws() -> str:
    from tests.security.test_mechanisms import jws

    return jws()


@pytest.mark.usefixtures("short_sessions")
async def test_sessions_also_end_and_begin_with_tls():
    security = Security(
        tls=server_context(), mechanisms=["SCRAM-SHA-512"], users=USERS, session_lifetime=100 * MS
    )
    settings = {
        **PLAIN,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "ssl_truststore_certificates": authority_pem(),
    }
    async with EmbeddedCluster(topics={"t": 1}, security=security) as cluster:
        settings = {**QUICK, **settings, "sasl_plain_without_tls": False}
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            while len(security.authentications) < 6:
                await producer.send_and_wait("t", b"x")

    assert security.failures == 0


# -------------------------------------------------------------------------------------- one connection, step by step


class Scripted:
    """A broker that authenticates with PLAIN, and then runs the test's function."""

    def __init__(self, lifetime_ms: int = 60) -> None:
        self.lifetime_ms = lifetime_ms
        self.seen: list[ApiKey] = []

    async def authenticate(self, peer: Peer, *, error: int = 0, message: str | None = None) -> None:
        """Serve one SaslHandshake and one SaslAuthenticate."""
        header, _ = await self.request(peer)
        assert header.api_key == ApiKey.SASL_HANDSHAKE
        peer.answer(header, SaslHandshakeResponse(mechanisms=["PLAIN"]))
        header, _ = await self.request(peer)
        assert header.api_key == ApiKey.SASL_AUTHENTICATE
        peer.answer(
            header,
            SaslAuthenticateResponse(
                error_code=error, error_message=message, session_lifetime_ms=self.lifetime_ms
            ),
        )

    async def request(self, peer: Peer):
        header, message = await peer.request()
        self.seen.append(ApiKey(header.api_key))
        return header, message


@contextlib.asynccontextmanager
async def connected(broker: ScriptedBroker, **settings: object) -> AsyncIterator[Connection]:
    connection = make_connection(broker.port, **{**PLAIN, **settings})
    await connection.connect()
    try:
        yield connection
    finally:
        await connection.close()
        assert connection.is_gone


def ask(connection: Connection) -> asyncio.Future:
    return connection.request(MetadataRequest(topics=[]), timeout=LONG)


@pytest.mark.promise(
    "Security", "a session is re-authenticated in time, and nothing else is written meanwhile (KIP-368)"
)
@pytest.mark.usefixtures("short_sessions")
async def test_answers_to_earlier_requests_keep_arriving_and_nothing_is_written_until_the_last_answer():
    script = Scripted()
    may_answer = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        await script.authenticate(peer)
        held = [await script.request(peer) for _ in range(3)]
        header, _ = await script.request(peer)  # SaslHandshake, after the requests in flight
        assert header.api_key == ApiKey.SASL_HANDSHAKE
        await may_answer.wait()
        for index, (earlier, _) in enumerate(held):
            peer.answer(earlier, MetadataResponse(controller_id=index))
        script.lifetime_ms = 0
        peer.answer(header, SaslHandshakeResponse(mechanisms=["PLAIN"]))
        header, _ = await script.request(peer)
        peer.answer(header, SaslAuthenticateResponse())
        header, _ = await script.request(peer)
        peer.answer(header, MetadataResponse(controller_id=9))
        await silence(peer)

    async with ScriptedBroker(serve) as broker, connected(broker) as connection:
        earlier = [ask(connection) for _ in range(3)]
        await until(lambda: connection.state is ConnectionState.REAUTHENTICATING)
        assert not connection.can_send
        refused = ask(connection)
        with pytest.raises(BrokerConnectionError, match="is reauthenticating") as caught:
            await refused
        assert caught.value.written is False

        may_answer.set()
        answers = await asyncio.wait_for(asyncio.gather(*earlier), LONG)
        assert [answer.controller_id for answer in answers] == [0, 1, 2]
        await until(lambda: connection.state is ConnectionState.READY)
        assert connection.can_send
        assert (await asyncio.wait_for(ask(connection), LONG)).controller_id == 9

    assert script.seen == [*SASL, *[ApiKey.METADATA] * 3, *SASL, ApiKey.METADATA]


@pytest.mark.usefixtures("short_sessions")
async def test_the_token_is_fetched_before_the_first_request_and_other_requests_continue_meanwhile():
    script = Scripted()
    fetching, fetched = asyncio.Event(), asyncio.Event()
    calls = []

    async def credentials() -> tuple[str, str]:
        calls.append(1)
        if len(calls) == 2:
            fetching.set()
            await fetched.wait()
        return "alice", "alice-secret"

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        await script.authenticate(peer)
        header, _ = await script.request(peer)
        peer.answer(header, MetadataResponse(controller_id=5))
        script.lifetime_ms = 0
        await script.authenticate(peer)
        await silence(peer)

    settings = {"sasl_plain_username": None, "sasl_plain_password": None, "sasl_credentials": credentials}
    async with ScriptedBroker(serve) as broker, connected(broker, **settings) as connection:
        await asyncio.wait_for(fetching.wait(), LONG)
        assert connection.state is ConnectionState.READY
        assert (await asyncio.wait_for(ask(connection), LONG)).controller_id == 5
        fetched.set()
        await until(lambda: script.seen == [*SASL, ApiKey.METADATA, *SASL])
        await until(lambda: connection.state is ConnectionState.READY)


@pytest.mark.usefixtures("short_sessions")
async def test_a_rejected_renewal_ends_the_connection_and_requests_in_flight_may_have_been_executed():
    script = Scripted()

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        await script.authenticate(peer)
        await script.request(peer)
        await script.authenticate(peer, error=ErrorCode.SASL_AUTHENTICATION_FAILED, message="wrong\x07 user")

    # `serve` skips the answer to the earlier request, which violates the protocol; this
    # broker receives no earlier request.
    async def serve_in_order(peer: Peer) -> None:
        await peer.handshake()
        await script.authenticate(peer)
        await script.authenticate(peer, error=ErrorCode.SASL_AUTHENTICATION_FAILED, message="wrong\x07 user")
        await silence(peer)

    async with ScriptedBroker(serve) as broker, connected(broker) as connection:
        pending = ask(connection)
        with pytest.raises(Exception, match=r"answer|correlation|closed") as caught:
            await asyncio.wait_for(pending, LONG)
        assert caught.value.written is True
    async with ScriptedBroker(serve_in_order) as broker, connected(broker) as connection:
        await until(lambda: connection.is_gone)
        assert type(connection.error) is AuthenticationError
        assert r"wrong\x07 user" in str(connection.error)


def renewed_within_a_session_of_a_minute(settings: dict[str, object]) -> None:
    """In virtual time: a single connection, whose credentials fail twice when its session is due to be renewed."""
    security = Security(mechanisms=[str(settings["sasl_mechanism"])], users=USERS, session_lifetime=60.0)

    async def main() -> None:
        async with EmbeddedCluster(security=security) as cluster:
            connection = make_connection(cluster.broker(0).port, **settings)
            await connection.connect()
            await asyncio.sleep(59.0)
            assert len(security.authentications) == 2
            await asyncio.sleep(30.0)
            assert (await ask(connection)).error_code == 0
            assert connection.state is ConnectionState.READY
            await connection.close()

    simulate(main)
    assert security.failures == 0


def test_failures_to_get_credentials_are_repeated_while_the_session_lasts(caplog):
    calls = []

    def credentials() -> tuple[str, str]:
        calls.append(asyncio.get_event_loop().time())
        if len(calls) in (2, 3):
            raise LookupError("vault is sealed: alice-secret")
        return "alice", "alice-secret"

    nothing = {"sasl_plain_username": None, "sasl_plain_password": None}
    renewed_within_a_session_of_a_minute({**PLAIN, **nothing, "sasl_credentials": credentials})

    # Credentials are requested after 85 % of the session, and then after half of what remains of it, repeatedly.
    assert [when - calls[0] for when in calls[:4]] == pytest.approx([0.0, 51.0, 55.5, 57.75], abs=0.5)
    assert re.search(r"sasl_credentials \(.+\) raised LookupError", caplog.text)
    assert "alice-secret" not in caplog.text


def changed_afterwards() -> OAuthToken:
    token = OAuthToken("opaque", 3600)
    token.lifetime = "3600"
    return token


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda: OAuthToken(None),
        lambda: OAuthToken("opaque", "3600"),
        changed_afterwards,
        lambda: ("opaque", 2e9, "principal", "no mapping"),
        lambda: None,
        lambda: 5,
    ],
)
def test_an_invalid_result_of_the_provider_at_a_renewal_does_not_end_a_valid_session(nonsense, caplog):
    calls = []

    def provider() -> object:
        calls.append(1)
        return nonsense() if len(calls) in (2, 3) else OAuthToken(jws(), 0.0)

    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }
    renewed_within_a_session_of_a_minute(settings)

    assert len(calls) == 4
    assert caplog.text.count("lasts another") == 2
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("way", ["close", "drain"])
@pytest.mark.usefixtures("short_sessions")
async def test_closing_and_draining_during_a_renewal_leave_nothing_behind(way):
    script = Scripted()
    may_answer = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        await script.authenticate(peer)
        header, _ = await script.request(peer)
        await may_answer.wait()
        peer.answer(header, SaslHandshakeResponse(mechanisms=["PLAIN"]))
        await silence(peer)

    async with ScriptedBroker(serve) as broker, connected(broker) as connection:
        await until(lambda: connection.state is ConnectionState.REAUTHENTICATING)
        if way == "close":
            await connection.close()
        else:
            connection.drain()
            assert connection.state is ConnectionState.DRAINING
            may_answer.set()
        await until(lambda: connection.is_gone)

    assert script.seen == [*SASL, ApiKey.SASL_HANDSHAKE]


@pytest.mark.usefixtures("short_sessions")
async def test_a_bug_in_a_renewal_ends_the_connection(monkeypatch, caplog):
    script = Scripted()

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        await script.authenticate(peer)
        await script.authenticate(peer)

    async with ScriptedBroker(serve) as broker, connected(broker) as connection:
        monkeypatch.setattr(sasl.Plain, "step", lambda *_: 1 / 0)
        await until(lambda: connection.is_gone)
        assert "re-authentication failed" in str(connection.error)

    assert "ZeroDivisionError" in caplog.text


async def test_a_machine_that_computes_for_too_long_is_abandoned(monkeypatch):
    may_end = threading.Event()

    def slow(*_: object) -> tuple[str, bytes]:
        may_end.wait(10)
        return "", b""

    monkeypatch.setattr(sasl, "_scram_proof", slow)
    security = Security(mechanisms=["SCRAM-SHA-256"], users=USERS)
    async with EmbeddedCluster(security=security) as cluster:
        settings = {**PLAIN, "sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_without_tls": False}
        settings["socket_connection_setup_timeout_ms"] = 500
        try:
            with pytest.raises(BrokerConnectionError, match=r"SCRAM-SHA-256 took longer than 0\.5 s"):
                await make_connection(cluster.broker(0).port, **settings).connect()
        finally:
            may_end.set()


@pytest.mark.usefixtures("short_sessions")
@in_virtual_time
async def test_a_broker_that_does_not_answer_a_renewal_is_abandoned_after_the_request_timeout(monkeypatch):
    script = Scripted()

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        await script.authenticate(peer)
        await silence(peer)

    settings = {
        "request_timeout_ms": 500,
        "socket_connection_setup_timeout_ms": 500,
        "delivery_timeout_ms": 1000,
    }
    async with ScriptedBroker(serve) as broker, connected(broker, **settings) as connection:
        await until(lambda: connection.is_gone)
        assert "no answer to SASL_HANDSHAKE within 0.5 s" in str(connection.error)


@pytest.mark.usefixtures("short_sessions")
@in_virtual_time
async def test_renewals_do_not_keep_an_idle_connection_open():
    script = Scripted(lifetime_ms=40)

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        while True:
            await script.authenticate(peer)

    async with (
        ScriptedBroker(serve) as broker,
        connected(broker, connections_max_idle_ms=250 * MS * 1000) as connection,
    ):
        await until(lambda: connection.is_gone)
        assert connection.error is None

    assert len(script.seen) >= 6
