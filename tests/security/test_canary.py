"""A password, a key and a token: none of them appears in any output, in successful runs and in failures."""

from __future__ import annotations

import asyncio
import base64
import copy
import hashlib
import hmac
import io
import json
import logging
import pickle
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

import aioproducer
from aioproducer import Producer
from aioproducer.errors import (
    AuthenticationError,
    BootstrapError,
    ConfigError,
    KafkaError,
    TlsError,
    UnsupportedSaslMechanismError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.security import authentication, sasl
from aioproducer.security.sasl import OAuthToken
from aioproducer.security.token_providers import MskIamTokenProvider, OidcTokenProvider
from aioproducer.sending.lifecycle import Lifecycle
from aioproducer.testing import EmbeddedCluster, Security
from aioproducer.testing.embedded import broker_security
from aioproducer.types import Secret
from tests.conftest import MS
from tests.security.test_token_providers import SECRET_KEY, SESSION_TOKEN, Endpoint, credentials_provider
from tests.support.certificates import (
    authority_pem,
    chain_pem,
    client_certificate,
    key_pem,
    server_context,
    write,
)
from tests.support.producing import QUICK
from tests.support.scripted_broker import LONG, Peer, ScriptedBroker, silence, until

PACKAGE = str(Path(aioproducer.__file__).parent)

PASSWORD = "canary-Pa55word-7b1f"
KEY_PASSWORD = "canary-key-Pa55word-93aa"
TOKEN = (
    base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    + "."
    + (
        base64.urlsafe_b64encode(b'{"sub":"canary-subject-41c7","exp":99999999999}').decode().rstrip("=")
        + "."
    )
)
CLIENT_SECRET = "canary-client-secret-1d0e"


def needles() -> list[str]:
    """Return the forms in which the secrets might appear: unchanged, and in Base64, alone or after other bytes."""
    plain = [
        *(PASSWORD, KEY_PASSWORD, TOKEN, TOKEN.split(".")[1], CLIENT_SECRET, SECRET_KEY, SESSION_TOKEN),
        quote(SESSION_TOKEN),
        key_pem(client_certificate("alice")).split("\n")[1],
    ]
    encoded = [
        base64.b64encode(bytes(before) + text.encode()).decode()[4:-4]
        for text in plain
        for before in range(3)
    ]
    return [*plain, *encoded]


class Derived:
    """The secrets that only arise during a run: the keys and proofs that SCRAM derives from the password, and
    Amazon's tokens."""

    def __init__(self) -> None:
        self.needles: list[str] = []
        self._proof = sasl._scram_proof

    def scram_proof(
        self, name: str, password: Secret, salt: bytes, iterations: int, signed: bytes
    ) -> tuple[str, bytes]:
        """Return the same as the package's function, which it replaces, and keep the secrets (RFC 5802, 3)."""
        proof, signature = self._proof(name, password, salt, iterations, signed)
        salted = hashlib.pbkdf2_hmac(name, password.reveal().encode(), salt, iterations)
        client_key, server_key = (
            hmac.digest(salted, b"%s Key" % who, name) for who in (b"Client", b"Server")
        )
        stored_key = hashlib.new(name, client_key).digest()
        for one in (salted, client_key, stored_key, server_key, base64.b64decode(proof)):
            self.needles += [base64.b64encode(one).decode(), one.hex(), repr(one)[2:-1]]
        return proof, signature

    def msk_provider(self) -> MskIamTokenProvider:
        derived = self

        class Kept(MskIamTokenProvider):
            def __call__(self) -> OAuthToken:
                token = super().__call__()
                derived.needles.append(token.value.reveal())
                return token

        return Kept("eu-west-1", credentials_provider=credentials_provider(SESSION_TOKEN))


class Everything(logging.Handler):
    """A handler that keeps everything that is logged: messages, their arguments, and tracebacks with the local
    variables of every frame."""

    def __init__(self, warned: list[warnings.WarningMessage]) -> None:
        super().__init__(logging.DEBUG)
        self.out = io.StringIO()
        self._warned = warned

    def text(self) -> str:
        """Return the output since the last call."""
        self.write(*[str(one.message) for one in self._warned])
        self._warned.clear()
        text, self.out = self.out.getvalue(), io.StringIO()
        return text

    def emit(self, record: logging.LogRecord) -> None:
        # Amazon's library logs the text that it signs at DEBUG, as SECURITY.md says; that log is not ours.
        if record.name.startswith("botocore"):
            return
        self.write(record.getMessage(), record.args)
        if record.exc_info and record.exc_info[1] is not None:
            self.error(record.exc_info[1])

    def write(self, *things: object) -> None:
        for thing in things:
            print(thing, repr(thing), file=self.out)

    def error(self, error: BaseException | None) -> None:
        """Write the error as text and as a pickle, with each frame of the package as a crash reporter would show it."""
        seen: list[BaseException] = []
        while error is not None and error not in seen:
            seen.append(error)
            self.write(error, vars(error))
            with suppress(Exception):
                self.write(pickle.dumps(error))
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if (
                    frame.f_code.co_filename.startswith(PACKAGE)
                    and "/testing/" not in frame.f_code.co_filename
                ):
                    self.write(frame.f_code.co_qualname)
                    self.write(*[f"{name} = {value!r}" for name, value in frame.f_locals.items()])
            error = error.__cause__ or error.__context__


@pytest.fixture
def everything() -> Iterator[Everything]:
    root = logging.getLogger()
    level = root.level
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = Everything(warned)
        root.addHandler(found)
        root.setLevel(logging.DEBUG)
        yield found
    root.removeHandler(found)
    root.setLevel(level)


@pytest.fixture
def derived(monkeypatch) -> Derived:
    found = Derived()
    monkeypatch.setattr(sasl, "_scram_proof", found.scram_proof)
    return found


class Scenario(NamedTuple):
    """A broker, a producer's settings, and the resulting error; if it is None, records are delivered."""

    name: str
    security: Security
    settings: dict[str, object]
    error: type[KafkaError] | None = None
    told: str = ""


def suite(tmp_path, derived: Derived, answering: str, refusing: str) -> list[Scenario]:
    """Return all scenarios, most of which end in an error. The last two arguments are token endpoints: one
    returns a token, one does not."""
    return [
        *(one for mechanism in PASSWORD_MECHANISMS for one in with_password(mechanism)),
        *with_token(derived, answering, refusing),
        *with_certificate(tmp_path),
        *with_sessions(),
    ]


PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ALICE = {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
USERS = {"alice": PASSWORD}
TRUST = {"ssl_truststore_certificates": authority_pem()}


def with_password(mechanism: str) -> Iterator[Scenario]:
    trusted = {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, **TRUST}
    settings = {**trusted, **ALICE}

    def security(**changed: object) -> Security:
        return Security(**{"tls": server_context(), "mechanisms": [mechanism], "users": USERS, **changed})

    refused, other = AuthenticationError, UnsupportedSaslMechanismError
    forged = "a challenge" if mechanism == "PLAIN" else "is malformed"
    yield Scenario(mechanism, security(), settings)
    yield Scenario(f"{mechanism} refused", security(users=None), settings, refused, "Authentication failed")
    yield Scenario(f"{mechanism} not taken", security(mechanisms=["OAUTHBEARER"]), settings, other)
    yield Scenario(f"{mechanism} forged", security(tamper=lambda _, __: b"v=AAAA"), settings, refused, forged)
    if mechanism != "PLAIN":
        signature = security(tamper=lambda number, answer: b"v=AAAA" if number else answer)
        yield Scenario(f"{mechanism} forged signature", signature, settings, refused, "signature is wrong")
    yield Scenario(
        f"{mechanism} without SASL", security(mechanisms=()), settings, refused, "does not support SASL"
    )
    brief = {**settings, "max_block_ms": 1_000_000 * MS}
    yield Scenario(f"{mechanism} without TLS", security(tls=None), brief, BootstrapError, "TLS")
    strange = security(tls=server_context("strange"))
    yield Scenario(f"{mechanism} strange", strange, settings, TlsError, "certificate was rejected")

    def asked(function: object) -> dict[str, object]:
        return {**trusted, "sasl_credentials": function}

    yield Scenario(f"{mechanism} asked", security(), asked(lambda: ("alice", PASSWORD)))
    wrong = asked(lambda: ("alice", PASSWORD, "too many"))
    yield Scenario(f"{mechanism} asked, wrong", security(), wrong, refused, "must return a pair")
    encoded = asked(lambda: ("alice", PASSWORD.encode()))
    yield Scenario(f"{mechanism} asked, bytes", security(), encoded, refused, "must return a pair")
    unsendable = asked(lambda: ("alice", PASSWORD + "\ud800"))
    yield Scenario(f"{mechanism} asked, unsendable", security(), unsendable, refused, "valid Unicode")
    failing = asked(lambda: {}["no such key"])
    yield Scenario(f"{mechanism} asked, failing", security(), failing, refused, "raised KeyError")


class TakesAnyToken:
    """The broker's side of OAUTHBEARER that accepts any token, including Amazon's."""

    principal, lifetime = "", 0.0

    def step(self, message: bytes) -> bytes:
        self.principal = "User:iam"
        return b""


class Msk(Security):
    def exchange(self, mechanism: str) -> TakesAnyToken:
        return TakesAnyToken()


def with_token(derived: Derived, answering: str, refusing: str) -> Iterator[Scenario]:
    refused = AuthenticationError

    def given(provider: object) -> dict[str, object]:
        return {**TOKENS, "sasl_oauth_token_provider": provider}

    def oidc(url: str) -> dict[str, object]:
        return {
            **TOKENS,
            "sasl_oauthbearer_token_endpoint_url": url,
            "sasl_oauthbearer_client_credentials_client_id": "client",
            "sasl_oauthbearer_client_credentials_client_secret": CLIENT_SECRET,
        }

    def bearer(**changed: object) -> Security:
        return Security(mechanisms=["OAUTHBEARER"], **changed)

    late = bearer(clock=lambda: 1e12)
    nobody = OidcTokenProvider("http://127.0.0.1:1/", "client", CLIENT_SECRET, attempts=1)
    yield Scenario("token", bearer(), given(lambda: TOKEN))
    yield Scenario("token unsendable", bearer(), given(lambda: TOKEN + "\n"), refused, "printable ASCII")
    yield Scenario("token malformed", bearer(), given(lambda: (TOKEN, "never")), refused, "must return")
    wordy = given(lambda: OAuthToken(TOKEN, "3600"))
    yield Scenario("token with a wordy life", bearer(), wordy, ConfigError, "lifetime must be a number")
    extended = given(lambda: (TOKEN, 2e9, "principal", "extensions"))
    yield Scenario("token with odd extensions", bearer(), extended, ConfigError, "must be a mapping")
    encoded = given(lambda: OAuthToken(TOKEN.encode()))
    yield Scenario("token of bytes", bearer(), encoded, ConfigError, "not bytes")
    yield Scenario(
        "token refused", late, given(lambda: TOKEN), refused, "rejected the OAUTHBEARER credentials"
    )
    yield Scenario("OIDC answered", bearer(), oidc(answering))
    yield Scenario(
        "OIDC answered, token refused", late, oidc(answering), refused, "rejected the OAUTHBEARER credentials"
    )
    yield Scenario("OIDC refused", bearer(), oidc(refusing), refused, "HTTP status 401")
    yield Scenario("OIDC unreachable", bearer(), given(nobody), refused, "returned no token")
    yield Scenario("MSK IAM", Msk(mechanisms=["OAUTHBEARER"]), given(derived.msk_provider()))
    yield Scenario("MSK IAM refused", bearer(), given(derived.msk_provider()), refused, "rejected the")


TOKENS = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}


def with_certificate(tmp_path) -> Iterator[Scenario]:
    leaf = client_certificate("alice")
    mutual = {"security_protocol": "SSL", **TRUST}
    own = {"ssl_keystore_certificate_chain": chain_pem(leaf), "ssl_keystore_key": key_pem(leaf)}
    locked = {
        "ssl_keystore_location": write(tmp_path / "own.pem", key_pem(leaf, KEY_PASSWORD) + chain_pem(leaf)),
        "ssl_key_password": KEY_PASSWORD,
    }
    wrong = {**locked, "ssl_key_password": KEY_PASSWORD + "x"}
    security = Security(tls=server_context(wants_certificate=True))
    yield Scenario("mTLS", security, {**mutual, **own})
    yield Scenario("mTLS, key locked", security, {**mutual, **locked})
    yield Scenario("mTLS, key not opened", security, {**mutual, **wrong}, ConfigError, "can't be decrypted")


def with_sessions() -> Iterator[Scenario]:
    """Yield scenarios in which producers re-authenticate several times, until the broker rejects them."""
    given = {
        "PLAIN": {**ALICE, "sasl_plain_without_tls": True},
        "SCRAM-SHA-256": ALICE,
        "SCRAM-SHA-512": ALICE,
        "OAUTHBEARER": {"sasl_oauth_token_provider": lambda: TOKEN},
    }
    for mechanism, credentials in given.items():
        security = Security(mechanisms=[mechanism], users=USERS, session_lifetime=60 * MS, session_slack=LONG)
        settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, **credentials}
        yield Scenario(f"{mechanism} renewed", security, settings)


AUTHENTICATIONS = 6
"""Three of the authentications open connections: to the bootstrap address, to the leader, and to the
leader again after a dropped connection."""


def _fields(producer: Producer) -> dict[str, Any]:
    return {name: getattr(producer, name) for name in Lifecycle.__slots__ if hasattr(producer, name)}


async def play(cluster: EmbeddedCluster, scenario: Scenario, everything: Everything) -> KafkaError | None:
    """Use a producer in every way that causes output; return the error that prevents deliveries."""
    security = scenario.security
    producer = Producer(cluster.bootstrap_servers, **{**QUICK, **scenario.settings})
    everything.write(producer, producer.config, _fields(producer))
    everything.write(
        pickle.dumps(producer.config) if _can_be_pickled(producer) else "", copy.copy(producer.config)
    )
    found = None
    try:
        async with asyncio.timeout(LONG):
            await producer.start()
            everything.write(_fields(producer), producer.metrics())
            await asyncio.gather(*[await producer.send("t", b"v") for _ in range(2)])
            cluster.faults.add(ApiKey.PRODUCE, drop_before=True)
            await producer.send_and_wait("t", b"w")
            while security.session_lifetime and len(security.authentications) < AUTHENTICATIONS:
                await producer.send_and_wait("t", b"x")
    except KafkaError as error:
        found = error
        everything.error(error)
    _write_what_lives(producer, everything)
    everything.write(await producer.close(timeout=0.1))
    return found


async def trouble(cluster: EmbeddedCluster, scenario: Scenario, everything: Everything) -> None:
    """Let something fail while a producer is running, and wait until it reports the failure."""
    security = scenario.security
    patience = 500 if security.session_lifetime else 150
    limits = {"max_block_ms": patience, "delivery_timeout_ms": 150, "request_timeout_ms": 100}
    producer = Producer(cluster.bootstrap_servers, **{**QUICK, **limits, **scenario.settings})

    async def run() -> None:
        await producer.start()
        if security.session_lifetime:
            # The broker rejects the open connection and all later ones.
            security.users.clear()
            security.clock = lambda: 1e12
            await until(lambda: security.failures)
        cluster.faults.add(ApiKey.SASL_AUTHENTICATE, truncate=3, count=50)
        cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        await cluster.close_connections(0)
        await producer.send_and_wait("t", b"z")

    with pytest.raises(KafkaError) as caught:
        await asyncio.wait_for(run(), LONG)
    everything.error(caught.value)
    _write_what_lives(producer, everything)
    everything.write(await producer.close(timeout=0.1))


def _write_what_lives(producer: Producer, everything: Everything) -> None:
    everything.write(
        *[vars(entry.connection) for entry in producer._brokers._entries.values() if entry.connection]
    )
    everything.write([repr(task) for task in asyncio.all_tasks()])
    everything.write([str(task.get_stack()) for task in asyncio.all_tasks()])


def _can_be_pickled(producer: Producer) -> bool:
    try:
        pickle.dumps(producer.config)
    except Exception:
        return False  # a function is among the settings
    return True


@pytest.mark.promise("Security", "no secret is written anywhere")
@pytest.mark.slow
async def test_threat_20_no_secret_is_in_any_output(everything, derived, tmp_path, monkeypatch):
    monkeypatch.setattr(authentication, "SHORTEST_SESSION", 0.005)
    monkeypatch.setattr(broker_security, "PAUSE_BETWEEN_AUTHENTICATIONS", 0.0)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: everything.write(json.dumps(context, default=repr)))
    refusal = (401, f"no client {CLIENT_SECRET}, no token {TOKEN}".encode())
    async with (
        Endpoint((200, {"access_token": TOKEN, "expires_in": 3600})).running() as answering,
        Endpoint(refusal).running() as refusing,
    ):
        scenarios = suite(tmp_path, derived, answering.url, refusing.url)
        for scenario in scenarios:
            async with EmbeddedCluster(security=scenario.security, topics={"t": 1}) as cluster:
                error = await play(cluster, scenario, everything)
                assert type(error) is (scenario.error or type(None)), scenario.name
                assert scenario.told in str(error), scenario.name
                assert bool(cluster.records("t", 0)) is (error is None), scenario.name
                if error is None:
                    await trouble(cluster, scenario, everything)
                everything.write(*[repr(seen.message) for seen in cluster.requests])
            written = everything.text()
            assert "sasl_plain_password" in written, "the settings were written, but without their secrets"
            for needle in (*needles(), *derived.needles):
                at = written.find(needle)
                assert at < 0, f"{scenario.name}: ...{written[max(0, at - 300) : at + 100]}"
    assert len(derived.needles) > 100
    assert answering.requests
    assert refusing.requests


async def test_a_password_that_a_broker_repeats_is_not_logged(everything):
    """With PLAIN, the broker receives the password. A broker that repeats it in an error text could also
    log it."""

    async def serve(peer: Peer) -> None:
        from aioproducer.protocol.messages import SaslAuthenticateResponse, SaslHandshakeResponse

        await peer.handshake()
        header, _ = await peer.request()
        peer.answer(header, SaslHandshakeResponse(mechanisms=["PLAIN"]))
        header, message = await peer.request()
        told = f"no user {message.auth_bytes.decode()!r}"
        peer.answer(header, SaslAuthenticateResponse(error_code=58, error_message=told))
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        producer = Producer(
            broker.address,
            **{**QUICK, "max_block_ms": 20_000_000 * MS},
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_without_tls=True,
            sasl_plain_username="alice",
            sasl_plain_password=PASSWORD,
        )
        with pytest.raises(Exception, match="no user") as caught:
            await producer.start()
        everything.error(caught.value)
        await producer.close()

    assert PASSWORD not in everything.text()


def test_a_leaked_canary_would_be_found(everything):
    def fails(password: str) -> None:
        raise ValueError("wrong")

    logging.getLogger("aioproducer").debug("password %s", PASSWORD)
    try:
        fails(KEY_PASSWORD)
    except ValueError as error:
        everything.error(error)

    assert PASSWORD in everything.text()
