"""The handlers for SaslHandshake and SaslAuthenticate, without sockets."""

from __future__ import annotations

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from aioproducer.testing import EmbeddedCluster, Security
from aioproducer.testing.embedded import broker_security
from aioproducer.testing.embedded.broker_security import Session
from aioproducer.testing.embedded.sasl_requests import sasl_authenticate, sasl_handshake
from tests.support.direct_calls import context_of, unstarted_cluster

USERS = {"alice": "alice-secret", "bob": "bob-secret"}
ILLEGAL = ErrorCode.ILLEGAL_SASL_STATE


class Connected:
    """A client whose requests reach the handlers directly, in one session."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.session = Session() if cluster.security is None else cluster.security.begin(None)

    async def handshake(self, mechanism: str = "PLAIN") -> SaslHandshakeResponse:
        request = SaslHandshakeRequest(mechanism=mechanism)
        context = context_of(self.cluster, request, 1, faults=list(self.cluster.faults))
        context.session = self.session
        return await sasl_handshake(context, request)

    async def authenticate(
        self, user: str = "alice", password: str | None = None, version: int = 2
    ) -> SaslAuthenticateResponse:
        """Authenticate with PLAIN."""
        request = SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{password or USERS[user]}".encode())
        context = context_of(self.cluster, request, version)
        context.session = self.session
        return await sasl_authenticate(context, request)


def client_of(**settings: object) -> Connected:
    security = Security(mechanisms=["PLAIN", "SCRAM-SHA-256"], users=USERS, **settings)
    return Connected(unstarted_cluster({}, security=security))


async def test_an_authentication_gives_the_session_its_principal():
    client = client_of()

    assert (await client.handshake()).error_code == 0
    assert (await client.authenticate("bob")).error_code == 0
    assert client.session.principal == "User:bob"
    assert client.cluster.security.authentications == [("User:bob", "PLAIN")]


@pytest.mark.parametrize(("version", "lifetime_ms"), [(0, 0), (1, 30_000), (2, 30_000)])
async def test_a_client_that_knows_sessions_gets_their_lifetime(version, lifetime_ms):
    client = client_of(session_lifetime=30.0)

    await client.handshake()

    assert (await client.authenticate(version=version)).session_lifetime_ms == lifetime_ms
    assert (client.session.ends_at == float("inf")) is not bool(lifetime_ms)


async def test_a_wrong_password_gets_an_error_message_and_an_unknown_mechanism_the_list_of_mechanisms():
    client = client_of()
    unknown = await client.handshake("GSSAPI")
    assert unknown.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert unknown.mechanisms == ["PLAIN", "SCRAM-SHA-256"]

    await client.handshake()
    wrong = await client.authenticate(password="wrong")
    assert wrong.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert wrong.error_message == "Authentication failed: Invalid username or password"
    assert client.cluster.security.failures == 1


async def test_a_scripted_error_is_the_answer_to_a_handshake():
    client = client_of()
    client.cluster.faults.add(ApiKey.SASL_HANDSHAKE, error=ErrorCode.UNSUPPORTED_SASL_MECHANISM)

    assert (await client.handshake()).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert client.session.exchange is None


async def test_a_cluster_without_sasl_rejects_sasl_requests():
    client = Connected(unstarted_cluster({}))

    assert (await client.handshake()).error_code == ILLEGAL
    assert (await client.authenticate()).error_code == ILLEGAL


async def test_a_reauthentication_must_have_the_same_principal_and_mechanism(monkeypatch):
    monkeypatch.setattr(broker_security, "PAUSE_BETWEEN_AUTHENTICATIONS", 0.0)
    client = client_of(session_lifetime=30.0)
    await client.handshake()
    await client.authenticate()
    assert (await client.handshake("SCRAM-SHA-256")).error_code == ILLEGAL

    await client.handshake()
    other = await client.authenticate("bob")
    assert other.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "Cannot change principals" in other.error_message


@pytest.mark.parametrize("session_lifetime", [0.0, 30.0])
async def test_a_reauthentication_is_rejected_within_a_second_and_if_the_session_does_not_end(
    session_lifetime, monkeypatch
):
    if not session_lifetime:
        monkeypatch.setattr(broker_security, "PAUSE_BETWEEN_AUTHENTICATIONS", 0.0)
    client = client_of(session_lifetime=session_lifetime)
    await client.handshake()
    await client.authenticate()

    assert (await client.handshake()).error_code == ILLEGAL
