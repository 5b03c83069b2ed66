"""Producers and brokers that authenticate each other: TLS, mTLS, each SASL mechanism, rejections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import pickle
import socket
import ssl
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from aioproducer import Producer
from aioproducer.errors import (
    AuthenticationError,
    BootstrapError,
    BrokerConnectionError,
    ConfigError,
    DeliveryTimeoutError,
    KafkaTimeoutError,
    MetadataTimeoutError,
    TlsError,
    UnsupportedSaslMechanismError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    MetadataRequest,
    MetadataResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from aioproducer.security import login as login_module
from aioproducer.security.sasl import OAuthToken
from aioproducer.testing import EmbeddedCluster, Operation, Security
from aioproducer.types import Secret
from tests.conftest import MS, at_most, in_virtual_time
from tests.support.certificates import (
    authority_pem,
    chain_pem,
    client_certificate,
    key_pem,
    server_context,
    write,
)
from tests.support.producing import QUICK
from tests.support.scripted_broker import (
    HOST,
    LONG,
    Net,
    Peer,
    ScriptedBroker,
    api_versions,
    make_connection,
    silence,
    until,
)

USERS = {"alice": "alice-secret"}
TRUST = {"ssl_truststore_certificates": authority_pem()}
ALICE = {"sasl_plain_username": "alice", "sasl_plain_password": "alice-secret"}
SCRAM = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", **ALICE}


def jws(subject: str = "alice", life: float = 3600.0, **claims: object) -> str:
    """Return an unsecured token of the kind that Kafka's default validator accepts."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + life, **claims})
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


@contextlib.asynccontextmanager
async def cluster_of(security: Security | None, **settings: object) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(security=security, topics={"t": 1}, **settings) as cluster:
        yield cluster


async def deliver(cluster: EmbeddedCluster, **settings: object) -> None:
    """Deliver a record."""
    patient = {**QUICK, "max_block_ms": LONG * 1000}
    async with Producer(cluster.bootstrap_servers, **{**patient, **settings}) as producer:
        await producer.send_and_wait("t", b"value")
    assert [record.value for record in cluster.records("t")] == [b"value"]


async def refusal(servers: str, **settings: object) -> BaseException:
    """Return the error of start(), which must fail soon."""
    producer = Producer(servers, **{**QUICK, "max_block_ms": 600_000, **settings})
    with pytest.raises(Exception) as caught:  # noqa: PT011  # checked by the caller
        async with at_most(LONG):
            await producer.start()
    await producer.close()
    assert not isinstance(caught.value, TimeoutError) or isinstance(caught.value, BootstrapError)
    return caught.value


async def given_up(servers: str, **settings: object) -> BootstrapError:
    """Return the error of start() when its time is up, some time after the first attempt has failed."""
    loop = asyncio.get_running_loop()
    async with Net(servers, **settings) as net:
        patient = asyncio.create_task(net.metadata.first_update(loop.time() + 600))
        await until(lambda: net.metadata.last_error is not None or patient.done())
        assert not patient.done()
        with pytest.raises(BootstrapError) as caught:
            await net.metadata.first_update(loop.time() + 50 * MS)
        patient.cancel()
        await asyncio.wait([patient])
    return caught.value


# ----------------------------------------------------------------------------------------- successful authentication


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
async def test_user_and_password_are_accepted(protocol, mechanism):
    security = Security(
        tls=server_context() if protocol == "SASL_SSL" else None, mechanisms=[mechanism], users=USERS
    )
    settings = TRUST if protocol == "SASL_SSL" else {"sasl_plain_without_tls": mechanism == "PLAIN"}
    async with cluster_of(security, brokers=2) as cluster:
        await deliver(cluster, security_protocol=protocol, sasl_mechanism=mechanism, **ALICE, **settings)

    assert set(security.authentications) == {("User:alice", mechanism)}


async def test_tls_alone_is_accepted():
    async with cluster_of(Security(tls=server_context())) as cluster:
        await deliver(cluster, security_protocol="SSL", **TRUST)


async def test_a_clients_certificate_is_accepted_and_identifies_the_client():
    leaf = client_certificate("alice")
    security = Security(tls=server_context(wants_certificate=True))
    async with cluster_of(security) as cluster:
        # The broker's ACLs use the name in the certificate.
        cluster.authorizer.deny(Operation.WRITE, topic="t", principal="User:CN=bob,OU=x")
        await deliver(
            cluster,
            security_protocol="SSL",
            ssl_keystore_certificate_chain=chain_pem(leaf),
            ssl_keystore_key=key_pem(leaf),
            **TRUST,
        )


async def test_a_token_is_accepted_with_its_extensions():
    asked = []

    async def provider() -> str:
        asked.append(1)
        return jws()

    security = Security(mechanisms=["OAUTHBEARER"])
    async with cluster_of(security, brokers=3) as cluster:
        await deliver(
            cluster,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provider,
            sasl_oauthbearer_extensions={"logicalCluster": "lkc-1"},
        )

    # All connections share one token while it is young.
    assert len(asked) == 1
    assert len(security.authentications) >= 1


class AiokafkasProvider:
    """The interface of aiokafka's AbstractTokenProvider."""

    async def token(self) -> str:
        return jws("carol")

    def extensions(self) -> dict[str, str]:
        return {"traceId": "7"}


@pytest.mark.parametrize(
    "provider",
    [
        AiokafkasProvider(),
        lambda: jws("carol"),
        lambda: (jws("carol"), time.time() + 60),
        lambda: asyncio.sleep(0, jws("carol")),
    ],
)
async def test_a_provider_may_be_a_function_a_coroutine_function_or_aiokafkas_object(provider):
    security = Security(mechanisms=["OAUTHBEARER"])
    async with cluster_of(security) as cluster:
        await deliver(
            cluster,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provider,
        )

    assert ("User:carol", "OAUTHBEARER") in security.authentications


async def test_a_delegation_token_authenticates_its_owner():
    security = Security(mechanisms=["SCRAM-SHA-256"], delegation_tokens={"token-id": ("alice", "hmac")})
    async with cluster_of(security) as cluster:
        await deliver(
            cluster,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username="token-id",
            sasl_plain_password="hmac",
            sasl_scram_token_auth=True,
        )

    assert set(security.authentications) == {("User:alice", "SCRAM-SHA-256")}


async def test_a_users_own_context_is_used():
    context = ssl.create_default_context(cadata=authority_pem())
    async with cluster_of(Security(tls=server_context())) as cluster:
        await deliver(cluster, security_protocol="SSL", ssl_context=context)


async def test_the_oldest_brokers_with_frames_for_tokens_are_supported():
    security = Security(mechanisms=["SCRAM-SHA-512"], users=USERS)
    async with cluster_of(security, versions="2.1") as cluster:
        await deliver(cluster, **{**SCRAM, "sasl_mechanism": "SCRAM-SHA-512"})
        assert cluster.requests_of(ApiKey.SASL_AUTHENTICATE)[0].header.version == 0


async def test_a_megabyte_record_and_many_small_ones_are_sent_through_tls():
    async with cluster_of(Security(tls=server_context()), max_message_bytes=4_000_000) as cluster:
        settings = {**QUICK, "security_protocol": "SSL", "max_request_size": 4_000_000, **TRUST}
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            big = [bytes([number]) * 1_500_000 for number in range(6)]
            deliveries = [await producer.send("t", value) for value in big]
            deliveries += [await producer.send("t", b"%d" % number) for number in range(2000)]
            await asyncio.wait_for(asyncio.gather(*deliveries), 4 * LONG)

        assert [record.value for record in cluster.records("t")] == [*big, *(b"%d" % n for n in range(2000))]


async def test_acks_0_resolves_through_tls_once_the_bytes_have_left():
    async with cluster_of(Security(tls=server_context())) as cluster:
        async with Producer(
            cluster.bootstrap_servers, **{**QUICK, "acks": 0, "security_protocol": "SSL", **TRUST}
        ) as producer:
            metadata = await producer.send_and_wait("t", b"x")
            assert metadata.offset is None
        await until(lambda: cluster.records("t"))


# -------------------------------------------------------------------------------------------------------- rejections


@pytest.mark.promise(
    "Security",
    "a failed authentication ends `start()` at once; a running producer tries again with growing pauses",
)
async def test_a_wrong_password_makes_start_fail_immediately_with_the_message_of_the_broker():
    security = Security(mechanisms=["SCRAM-SHA-256"], users=USERS)
    async with cluster_of(security, brokers=3) as cluster:
        error = await refusal(cluster.bootstrap_servers, **{**SCRAM, "sasl_plain_password": "wrong-secret"})

    assert type(error) is AuthenticationError
    assert "invalid credentials" in str(error)
    assert "SCRAM-SHA-256" in str(error)
    assert "wrong-secret" not in str(error)
    # One attempt for each of the brokers could lock the account.
    assert security.failures == 1


async def test_a_mechanism_that_the_broker_rejects_is_named_with_those_it_accepts():
    async with cluster_of(Security(mechanisms=["PLAIN", "SCRAM-SHA-512"], users=USERS)) as cluster:
        error = await refusal(cluster.bootstrap_servers, **SCRAM)

        assert type(error) is UnsupportedSaslMechanismError
        assert error.mechanism == "SCRAM-SHA-256"
        assert error.offered == ("PLAIN", "SCRAM-SHA-512")
        assert cluster.requests_of(ApiKey.SASL_AUTHENTICATE) == []


@pytest.mark.promise(
    "Security", "no request and no password is sent before the broker's certificate is verified"
)
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("expired", "certificate has expired; the broker needs a new certificate"),
        ("not yet valid", "certificate is not yet valid; compare this machine's clock"),
        (
            "wrong host",
            "not valid for '127.0.0.1'.; the name that the client connects to must be in the certificate",
        ),
        ("strange", "unable to get local issuer certificate; set ssl_truststore_location (or"),
    ],
)
async def test_an_invalid_certificate_makes_start_fail_immediately_and_no_password_is_sent(kind, told):
    security = Security(tls=server_context(kind), mechanisms=["PLAIN"], users=USERS)
    async with cluster_of(security) as cluster:
        error = await refusal(
            cluster.bootstrap_servers, security_protocol="SASL_SSL", sasl_mechanism="PLAIN", **ALICE, **TRUST
        )

        assert type(error) is TlsError
        assert told in str(error)
        assert list(cluster.requests) == []


async def test_a_broker_without_a_certificate_gets_no_password_though_a_cipher_suite_needs_none():
    nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trusting = ssl.create_default_context(cadata=authority_pem())
    for context in (nameless, trusting):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ALL:@SECLEVEL=0")
    settings = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", **ALICE, "ssl_context": trusting}

    async with cluster_of(Security(tls=nameless, mechanisms=["PLAIN"], users=USERS)) as cluster:
        error = await refusal(cluster.bootstrap_servers, **settings)

        assert type(error) is TlsError
        assert "the broker presented no certificate" in str(error)
        assert list(cluster.requests) == []


async def test_plain_without_tls_is_rejected_unless_a_setting_allows_it():
    with pytest.raises(ConfigError, match="sasl_plain_without_tls=True"):
        Producer("h:1", security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", **ALICE)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_listener_that_requires_sasl_is_named(tls):
    security = Security(tls=server_context() if tls else None, mechanisms=["PLAIN"], users=USERS)
    settings = {"security_protocol": "SSL", **TRUST} if tls else {}
    async with cluster_of(security) as cluster:
        error = await given_up(cluster.bootstrap_servers, **settings)

    wanted = "SASL_SSL" if tls else "SASL_PLAINTEXT"
    assert f"does this listener require SASL? If so, set security_protocol to {wanted}" in str(error)


async def test_the_error_for_a_broker_that_hangs_up_later_does_not_ask_about_sasl():
    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        peer.answer(header, MetadataResponse())
        await peer.request()

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port)
        await connection.connect()
        await connection.request(MetadataRequest(topics=[]), timeout=LONG)
        with pytest.raises(BrokerConnectionError) as caught:
            await connection.request(MetadataRequest(topics=[]), timeout=LONG)
        await connection.close()

    assert "SASL" not in str(caught.value)


async def test_a_listener_without_sasl_is_named():
    async with cluster_of(None) as cluster:
        error = await refusal(cluster.bootstrap_servers, **SCRAM)

    assert type(error) is AuthenticationError
    assert "does not support SASL" in str(error)


async def test_a_port_without_tls_is_named():
    async with cluster_of(None) as cluster:
        error = await given_up(cluster.bootstrap_servers, security_protocol="SSL", **TRUST)

    assert "does this port speak TLS?" in str(error)


async def test_a_web_server_with_or_without_tls_is_named():
    async def answer(peer: Peer) -> None:
        await peer.reader.read(1)
        peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.read_to_end()

    async with ScriptedBroker(answer) as server:
        with pytest.raises(TlsError, match="the peer does not speak TLS"):
            await make_connection(server.port, security_protocol="SSL", **TRUST).connect()


async def test_if_a_broker_requires_a_certificate_start_fails_and_names_the_setting():
    security = Security(tls=server_context(wants_certificate=True))
    async with cluster_of(security) as cluster:
        error = await refusal(cluster.bootstrap_servers, security_protocol="SSL", **TRUST)

    assert type(error) is TlsError
    assert "the broker requires a client certificate; set ssl_keystore_location" in str(error)


async def test_unreadable_certificates_make_start_fail_and_name_the_setting(tmp_path):
    error = await refusal(
        "127.0.0.1:1", security_protocol="SSL", ssl_truststore_location=str(tmp_path / "gone.pem")
    )

    assert type(error) is ConfigError
    assert "gone.pem: No such file" in str(error)


def changed_afterwards() -> OAuthToken:
    token = OAuthToken("opaque", 3600)
    token.lifetime = "3600"
    return token


@pytest.mark.parametrize(
    ("provider", "told"),
    [
        (lambda: 1 / 0, "raised ZeroDivisionError"),
        (lambda: None, "<lambda>) returned NoneType; it must return a str"),
        (
            lambda: ("secret", "tomorrow"),
            "returned tuple (str, str); it must return a str, an OAuthToken, or a pair",
        ),
        (lambda: "a b", "must be printable ASCII"),
        (lambda: jws(life=-60), "the token is invalid"),
        (lambda: OAuthToken(None), "the token must be a str or a Secret, not NoneType"),
        (lambda: OAuthToken(b"opaque"), "the token must be a str or a Secret, not bytes"),
        (lambda: OAuthToken(""), "the token is empty"),
        (lambda: OAuthToken("opaque", "3600"), "lifetime must be a number of seconds or None, not str"),
        (lambda: OAuthToken("opaque", math.nan), "lifetime must be a number of seconds or None, not NaN"),
        (lambda: OAuthToken("opaque", 60, {"a": 5}), "extensions must be a mapping of str to str"),
        (lambda: ("opaque", 2e9, "principal", "extensions"), "extensions must be a mapping of str to str"),
        (lambda: pickle.loads(pickle.dumps(Secret("opaque"))), "does not contain its text"),
        (changed_afterwards, "no credentials: TypeError"),
    ],
)
async def test_an_invalid_token_of_the_provider_makes_start_fail(provider, told, caplog):
    async with cluster_of(Security(mechanisms=["OAUTHBEARER"])) as cluster:
        error = await refusal(
            cluster.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provider,
        )

    assert isinstance(error, AuthenticationError | ConfigError)
    assert told in str(error)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("exp", ["soon", None, True, [], 10**400, float("inf"), float("nan"), -1])
async def test_the_embedded_broker_rejects_a_token_with_an_invalid_expiry(exp, caplog):
    async with cluster_of(Security(mechanisms=["OAUTHBEARER"])) as cluster:
        error = await refusal(
            cluster.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=lambda: jws(exp=exp),
        )

    assert isinstance(error, AuthenticationError)
    assert "the token is invalid" in str(error)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (None, "returned NoneType"),
        (("alice", None), "returned tuple (str, NoneType)"),
        (["alice", "secret", *range(4)], "returned list (str, str, int, int, int, ...)"),
    ],
)
async def test_a_function_for_credentials_that_returns_no_pair_is_named(returned, problem):
    def passwords() -> object:
        return returned

    async with cluster_of(Security(mechanisms=["PLAIN"], users={"alice": "secret"})) as cluster:
        error = await refusal(
            cluster.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_without_tls=True,
            sasl_credentials=passwords,
        )

    assert isinstance(error, AuthenticationError)
    assert f"passwords) {problem}; it must return a pair of str, (user name, password)" in str(error)
    assert "secret" not in str(error)


@in_virtual_time
async def test_a_provider_that_hangs_is_limited_by_the_set_up_time():
    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    async with cluster_of(Security(mechanisms=["OAUTHBEARER"])) as cluster:
        error = await given_up(
            cluster.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=hang,
            socket_connection_setup_timeout_ms=20,
        )

    assert "no credentials within" in str(error)


HANGS = {
    "sasl_oauth_token_provider": {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"},
    "sasl_credentials": {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"},
    "certificates": {"security_protocol": "SSL", "ssl_truststore_location": "/a/mount/that/hangs/ca.pem"},
}


@pytest.mark.promise(
    "Security",
    "calls that may hang (files, the user's functions, Kerberos) run in a few threads of their own, which "
    "block nothing else",
)
@pytest.mark.parametrize("setting", HANGS)
async def test_a_hanging_call_has_its_own_thread_and_not_one_of_the_application(setting, monkeypatch):
    calls = []
    go_on = threading.Event()

    def hang(*_: object) -> object:
        calls.append(threading.current_thread())
        assert go_on.wait(30)
        raise ValueError("too late")

    monkeypatch.setattr(login_module.TlsContext, "current", hang)
    given = {} if setting == "certificates" else {setting: hang}
    security = Security(mechanisms=["OAUTHBEARER", "SCRAM-SHA-256"], users=USERS)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with cluster_of(None if setting == "certificates" else security) as cluster:
        limits = {"socket_connection_setup_timeout_ms": 100_000 * MS, "max_block_ms": 1_000_000 * MS}
        try:
            error = await refusal(cluster.bootstrap_servers, **{**HANGS[setting], **given, **limits})
            assert isinstance(error, BootstrapError)
            [thread] = calls
            assert thread.daemon
            assert await asyncio.wait_for(asyncio.to_thread(len, "abc"), LONG) == 3
        finally:
            go_on.set()


# ---------------------------------------------------------------------------------------------------- forged answers


def replaced(old: bytes, new: bytes) -> Callable[[int, bytes], bytes]:
    return lambda _, message: message.replace(old, new)


def final_only(change: Callable[[bytes], bytes]) -> Callable[[int, bytes], bytes]:
    return lambda number, message: change(message) if number else message


@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (replaced(b"r=", b"r=x"), "nonce is forged"),
        (replaced(b"i=4096", b"i=1"), "asks for 1 iterations"),
        (replaced(b"i=4096", b"i=4095"), "asks for 4095 iterations"),
        (replaced(b"i=4096", b"i=999999999"), "asks for 999999999 iterations"),
        (replaced(b"r=", b"m=ext,r="), "extension"),
        (lambda _, __: b"e=other-error", "rejected the exchange: other-error"),
        (final_only(lambda message: message[:2] + b"AAAA" + message[6:]), "signature is wrong"),
        (final_only(lambda _: b""), "signature is wrong"),
        (final_only(lambda _: b"x=1"), "signature is wrong"),
    ],
)
async def test_a_broker_that_does_not_know_the_password_is_refused(tamper, told):
    security = Security(mechanisms=["SCRAM-SHA-256"], users=USERS, tamper=tamper)
    async with cluster_of(security) as cluster:
        error = await refusal(cluster.bootstrap_servers, **SCRAM)

        assert type(error) is AuthenticationError
        assert told in str(error)
        assert cluster.requests_of(ApiKey.METADATA) == []


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.SASL_AUTHENTICATION_FAILED])
async def test_a_brokers_message_is_shown_without_control_characters(code):
    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        peer.answer(header, SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"]))
        header, _ = await peer.request()
        peer.answer(
            header, SaslAuthenticateResponse(error_code=code, error_message="no\x1b[31m\n" + "x" * 5000)
        )
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        with pytest.raises(AuthenticationError, match=r"no\\x1b\[31m\\x0a") as caught:
            await make_connection(broker.port, **SCRAM).connect()

    assert len(str(caught.value)) < 1200


async def test_only_small_frames_are_accepted_until_the_broker_is_authenticated():
    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        peer.answer(header, SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"]))
        await peer.request()
        peer.writer.write((2**31 - 1).to_bytes(4, "big"))
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        with pytest.raises(Exception, match="limit is 65536 bytes"):
            await make_connection(broker.port, **SCRAM).connect()


async def test_a_rejected_token_fails_after_the_final_message():
    rounds = []

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        peer.answer(header, SaslHandshakeResponse(mechanisms=["OAUTHBEARER"]))
        while True:
            header, _ = await peer.request()
            rounds.append(1)
            peer.answer(header, SaslAuthenticateResponse(auth_bytes=b"{}"))

    async with ScriptedBroker(serve) as broker:
        with pytest.raises(AuthenticationError, match="rejected the token"):
            await make_connection(
                broker.port,
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="OAUTHBEARER",
                sasl_oauth_token_provider=jws,
            ).connect()

    assert len(rounds) == 2


@pytest.mark.parametrize(
    "ranges", [{"sasl_handshake": (0, 0)}, {"sasl_handshake": (5, 7)}, {"sasl_authenticate": (5, 6)}]
)
async def test_a_broker_that_is_too_old_for_sasl_is_reported_as_such(ranges):
    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        peer.answer(header, api_versions(**ranges))
        with contextlib.suppress(asyncio.IncompleteReadError):
            header, _ = await peer.request()
            peer.answer(header, SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"]))
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        with pytest.raises(AuthenticationError, match="too old, or this listener does not support SASL"):
            await make_connection(broker.port, **SCRAM).connect()


async def test_a_broker_that_goes_away_during_authentication_is_reported_as_such():
    async def serve(peer: Peer) -> None:
        await peer.handshake()
        await peer.request()

    async with ScriptedBroker(serve) as broker:
        with pytest.raises(BrokerConnectionError, match="during authentication with SCRAM-SHA-256"):
            await make_connection(broker.port, **SCRAM).connect()


async def test_before_authentication_the_client_sends_only_its_name():
    seen = []

    async def serve(peer: Peer) -> None:
        for answer in (api_versions(), SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"])):
            header, _ = await peer.request()
            seen.append(ApiKey(header.api_key).name)
            peer.answer(header, answer)
        header, message = await peer.request()
        seen.append(ApiKey(header.api_key).name)
        assert message.auth_bytes.startswith(b"n,,n=alice,r=")

    async with ScriptedBroker(serve) as broker:
        with pytest.raises(BrokerConnectionError):
            await make_connection(broker.port, **SCRAM).connect()

    assert seen == ["API_VERSIONS", "SASL_HANDSHAKE", "SASL_AUTHENTICATE"]


# ----------------------------------------------------------------------------------------------------------- rotation


async def test_a_changing_password_is_requested_for_each_connection():
    current = ["alice", "first"]
    security = Security(mechanisms=["SCRAM-SHA-256"], users={"alice": "first"})
    async with cluster_of(security) as cluster:
        settings = {
            **QUICK,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_credentials": lambda: (current[0], current[1]),
        }
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            await producer.send_and_wait("t", b"1")
            security.users["alice"] = current[1] = "second"
            await cluster.close_connections(0)
            await asyncio.wait_for(producer.send_and_wait("t", b"2"), LONG)

    assert security.failures == 0


async def test_a_running_producer_survives_a_password_that_is_changed_on_the_broker_first():
    current = ["first"]
    security = Security(mechanisms=["SCRAM-SHA-512"], users={"alice": "first"})

    async def credentials() -> tuple[str, str]:
        return "alice", current[0]

    async with cluster_of(security) as cluster:
        settings = {
            **QUICK,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_credentials": credentials,
        }
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            await producer.send_and_wait("t", b"1")
            security.users["alice"] = "second"
            await cluster.close_connections(0)
            delivery = await producer.send("t", b"2")
            await until(lambda: security.failures >= 3)
            assert not delivery.done()

            current[0] = "second"
            await asyncio.wait_for(delivery, 4 * LONG)


@pytest.mark.promise(
    "Security",
    "a failed authentication ends `start()` at once; a running producer tries again with growing pauses",
)
@in_virtual_time
async def test_pauses_grow_while_a_running_producer_is_rejected_and_records_end_by_their_timeout(monkeypatch):
    pauses = []
    security = Security(mechanisms=["SCRAM-SHA-512"], users=USERS)
    async with cluster_of(security) as cluster:
        settings = {**QUICK, **SCRAM, "sasl_mechanism": "SCRAM-SHA-512", "delivery_timeout_ms": 2000}
        settings["request_timeout_ms"] = 500
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            await producer.send_and_wait("t", b"1")
            security.users["alice"] = "changed"
            await cluster.close_connections(0)
            await until(lambda: producer._brokers.lost)
            with pytest.raises(DeliveryTimeoutError, match="invalid credentials"):
                await asyncio.wait_for(producer.send_and_wait("t", b"2"), LONG)
            pauses = [seen.at for seen in cluster.requests_of(ApiKey.SASL_HANDSHAKE)]

    # The pauses double from 5 ms, so there are about ten attempts in 2 s; with pauses of at most 20 ms,
    # there would be about a hundred.
    assert security.failures <= 16
    assert pauses[-1] - pauses[-2] > pauses[3] - pauses[2]


@pytest.mark.promise("Security", "certificates are read again when files change")
async def test_exchanged_certificates_are_used_for_the_next_connection(tmp_path):
    path = tmp_path / "client.pem"
    for_alice, for_bob = client_certificate("alice"), client_certificate("bob")
    write(path, key_pem(for_alice) + chain_pem(for_alice))
    security = Security(tls=server_context(wants_certificate=True))
    names = []
    begin = security.begin
    security.begin = lambda certificate: names.append(certificate["subject"][-1][0][1]) or begin(certificate)
    async with cluster_of(security) as cluster:
        settings = {**QUICK, "security_protocol": "SSL", "ssl_keystore_location": str(path), **TRUST}
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            await producer.send_and_wait("t", b"1")
            assert set(names) == {"alice"}

            write(path, key_pem(for_bob) + chain_pem(for_bob))
            await cluster.close_connections(0)
            await asyncio.wait_for(producer.send_and_wait("t", b"2"), LONG)
            assert names[-1] == "bob"


# ---------------------------------------------------------------------------------------------- addresses, connectors


async def test_an_advertised_address_can_be_mapped_and_the_certificate_must_still_have_its_name(
    caplog,
):
    asked = []

    def address_filter(host: str, port: int, node_id: int) -> tuple[str, int]:
        asked.append((host, port, node_id))
        return HOST, port

    async with cluster_of(Security(tls=server_context())) as cluster:
        broker = cluster.broker(0)
        settings = {**QUICK, "security_protocol": "SSL", "address_filter": address_filter, **TRUST}
        servers = f"{HOST}:{broker.port}"
        broker.host = "localhost"  # this name is also in the certificate
        async with Producer(servers, **settings) as producer:
            await producer.send_and_wait("t", b"1")

        broker.host = "elsewhere.example"
        async with Producer(servers, **settings) as producer:
            with pytest.raises(KafkaTimeoutError):
                await producer.send_and_wait("t", b"2", timeout=300 * MS)
            await until(lambda: "not valid for 'elsewhere.example'" in caplog.text)

        assert set(asked) == {(host, broker.port, 0) for host in ("localhost", "elsewhere.example")}
        assert len(cluster.records("t")) == 1


@pytest.mark.parametrize("answer", ["rejected", "raised LookupError"])
@in_virtual_time
async def test_an_advertised_address_can_be_refused(answer):
    def address_filter(host: str, port: int, node_id: int) -> None:
        if answer != "rejected":
            raise LookupError(f"{host}\x1b is not ours")

    async with cluster_of(None) as cluster:
        settings = {**QUICK, "max_block_ms": 200, "address_filter": address_filter}
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            with pytest.raises(MetadataTimeoutError, match=f"address_filter {answer}") as caught:
                await producer.send("t", b"1")

    assert "\x1b" not in str(caught.value)


async def test_a_connector_opens_the_sockets():
    opened = []

    async def connector(host: str, port: int) -> socket.socket:
        opened.append((host, port))
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
        return sock

    async with cluster_of(Security(tls=server_context())) as cluster:
        await deliver(cluster, security_protocol="SSL", connector=connector, **TRUST)

        assert set(opened) == {(HOST, cluster.broker(0).port)}


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (RuntimeError("no\x1b way"), r"RuntimeError: no\\x1b way"),
        (OSError("refused"), "refused"),
        (None, "NoneType"),
    ],
)
async def test_a_connector_that_fails_is_reported_with_the_address(failure, told):
    async def connector(host: str, port: int) -> socket.socket:
        if failure is not None:
            raise failure
        return None

    with pytest.raises(BrokerConnectionError, match=rf"127\.0\.0\.1:9: .*{told}"):
        await make_connection(9, connector=connector).connect()


async def test_socks5_works_through_a_library():
    from python_socks.async_.asyncio import Proxy

    async def socks5(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A minimal proxy (RFC 1928): no authentication, CONNECT to a host name."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            _, count = await reader.readexactly(2)
            await reader.readexactly(count)
            writer.write(b"\x05\x00")
            head = await reader.readexactly(4)
            size = 4 if head[3] == 1 else (await reader.readexactly(1))[0]
            await reader.readexactly(size)
            port = int.from_bytes(await reader.readexactly(2), "big")
            through.append(port)
            onward_reader, onward_writer = await asyncio.open_connection(HOST, port)
            writer.write(b"\x05\x00\x00\x01" + bytes(6))

            async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                with contextlib.suppress(OSError):
                    while data := await source.read(65536):
                        sink.write(data)
                        await sink.drain()
                sink.close()

            await asyncio.gather(pump(reader, onward_writer), pump(onward_reader, writer))
            for one in (onward_writer, writer):
                with contextlib.suppress(OSError):
                    await one.wait_closed()

    through: list[int] = []
    proxy = await asyncio.start_server(socks5, HOST, 0)
    proxy_port = proxy.sockets[0].getsockname()[1]

    async def connector(host: str, port: int) -> socket.socket:
        return await Proxy.from_url(f"socks5://{HOST}:{proxy_port}").connect(host, port)

    async with cluster_of(None) as cluster:
        await deliver(cluster, connector=connector)
        assert set(through) == {cluster.broker(0).port}
    proxy.close()
    await proxy.wait_closed()
    await asyncio.sleep(10 * MS)
