"""The embedded brokers' side of TLS, SASL and sessions: other clients are accepted, and violations close the
connection."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

import aiokafka
import pytest
from aiokafka.abc import AbstractTokenProvider

from aioproducer.protocol.messages import MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from aioproducer.testing import EmbeddedCluster, Security
from aioproducer.testing.embedded import broker_security
from tests.conftest import MS
from tests.security.test_mechanisms import jws
from tests.support.certificates import (
    authority_pem,
    chain_pem,
    client_certificate,
    key_pem,
    server_context,
    write,
)
from tests.support.raw_client import RawClient, address
from tests.testing.embedded.test_clients import in_thread, librdkafka_produces

USERS = {"alice": "alice-secret", "bob": "bob-secret"}
VALUES = [b"%d" % number for number in range(20)]


# --------------------------------------------------------------------------------------------------- other clients


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_librdkafka_connects_with_user_and_password(tmp_path: Path, protocol, mechanism):
    security = Security(
        tls=server_context() if protocol == "SASL_SSL" else None, mechanisms=[mechanism], users=USERS
    )
    settings = {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
    }
    if protocol == "SASL_SSL":
        settings["ssl.ca.location"] = write(tmp_path / "ca.pem", authority_pem())
    async with EmbeddedCluster(topics={"t": 1}, security=security) as cluster:
        failed = await in_thread(lambda: librdkafka_produces(cluster.bootstrap_servers, VALUES, **settings))

        assert failed == []
        assert [record.value for record in cluster.records("t")] == VALUES
    assert set(security.authentications) == {("User:alice", mechanism)}


async def test_librdkafka_connects_with_a_certificate(tmp_path: Path):
    leaf = client_certificate("alice")
    settings = {
        "security.protocol": "SSL",
        "ssl.ca.location": write(tmp_path / "ca.pem", authority_pem()),
        "ssl.certificate.location": write(tmp_path / "cert.pem", chain_pem(leaf)),
        "ssl.key.location": write(tmp_path / "key.pem", key_pem(leaf)),
    }
    security = Security(tls=server_context(wants_certificate=True))
    async with EmbeddedCluster(topics={"t": 1}, security=security) as cluster:
        failed = await in_thread(lambda: librdkafka_produces(cluster.bootstrap_servers, VALUES, **settings))

        assert failed == []


async def test_a_client_without_a_certificate_gets_the_reason_of_the_rejection(tmp_path: Path):
    """The rejection is the TLS alert, which arrives after the client has finished the handshake."""
    context = ssl.create_default_context(cadata=authority_pem())
    async with EmbeddedCluster(security=Security(tls=server_context(wants_certificate=True))) as cluster:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.broker(0).port, ssl=context)
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            await reader.read(1)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class Tokens(AbstractTokenProvider):
    async def token(self) -> str:
        return jws("carol")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_aiokafka_connects(mechanism):
    security = Security(tls=server_context(), mechanisms=[mechanism], users=USERS)
    who = {"sasl_plain_username": "alice", "sasl_plain_password": "alice-secret"}
    if mechanism == "OAUTHBEARER":
        who = {"sasl_oauth_token_provider": Tokens()}
    async with EmbeddedCluster(topics={"t": 1}, security=security) as cluster:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers,
            security_protocol="SASL_SSL",
            sasl_mechanism=mechanism,
            ssl_context=ssl.create_default_context(cadata=authority_pem()),
            **who,
        )
        await producer.start()
        await producer.send_and_wait("t", b"x")
        await producer.stop()

        assert len(cluster.records("t")) == 1


# ----------------------------------------------------------------------------------------------------------- the rules


def plain(user: str = "alice", password: str | None = None) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{password or USERS[user]}".encode())


async def authenticated(client: RawClient, user: str = "alice") -> int:
    """Authenticate with PLAIN, and return the lifetime of the session in milliseconds."""
    assert (await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)).error_code == 0
    answer = await client.ask(plain(user), 2)
    assert answer.error_code == 0
    return answer.session_lifetime_ms


def cluster_of(**settings: object) -> EmbeddedCluster:
    return EmbeddedCluster(security=Security(mechanisms=["PLAIN", "SCRAM-SHA-256"], users=USERS, **settings))


METADATA = MetadataRequest(topics=[])


async def test_nothing_is_served_before_authentication():
    async with cluster_of() as cluster, RawClient(address(cluster)) as client:
        client.send(METADATA, 12)
        assert await client.is_closed()


async def test_nothing_is_served_between_the_handshake_and_the_end_of_authentication():
    async with cluster_of() as cluster, RawClient(address(cluster)) as client:
        await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        client.send(METADATA, 12)
        assert await client.is_closed()


async def test_everything_is_served_after_authentication():
    async with cluster_of() as cluster, RawClient(address(cluster)) as client:
        assert await authenticated(client) == 0
        await client.metadata("t")


async def test_an_expired_session_serves_only_reauthentication(monkeypatch):
    monkeypatch.setattr(broker_security, "PAUSE_BETWEEN_AUTHENTICATIONS", 0.0)
    async with cluster_of(session_lifetime=30 * MS) as cluster:
        async with RawClient(address(cluster)) as client:
            assert await authenticated(client) == int(30 * MS * 1000)
            await asyncio.sleep(60 * MS)
            await authenticated(client)
            await client.metadata("t")
            await asyncio.sleep(60 * MS)
            client.send(METADATA, 12)
            assert await client.is_closed()


async def test_a_client_that_does_not_know_sessions_is_not_disconnected():
    async with cluster_of(session_lifetime=10 * MS) as cluster, RawClient(address(cluster)) as client:
        await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        await client.ask(plain(), 0)
        await asyncio.sleep(30 * MS)
        await client.metadata("t")
