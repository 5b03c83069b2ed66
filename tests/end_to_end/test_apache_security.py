"""A real Kafka with TLS and passwords: accepted and rejected clients, and sessions that are renewed under load."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Message
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from aioproducer import Producer
from aioproducer.errors import AuthenticationError, KafkaError, TlsError, UnsupportedSaslMechanismError
from aioproducer.security.authentication import Authentication
from aioproducer.testing import ApacheKafka
from tests.support.apache_clusters import LEAN, running
from tests.support.certificates import (
    authority_pem,
    broker_certificate,
    chain_pem,
    client_certificate,
    key_pem,
    pkcs12_store,
    pkcs12_trust,
    write,
)
from tests.support.read_back import scan

pytestmark = [pytest.mark.apache, pytest.mark.slow]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
_HANDLERS = "org.apache.kafka.common.security.oauthbearer"
UNSECURED = f"{_HANDLERS}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
VALIDATOR = f"{_HANDLERS}.OAuthBearerValidatorCallbackHandler"
ODD = "\u2168-p\u00e4\u00df"
"""A password that SASLprep would change."""
SESSION_MS = 5000
RENEWALS = 14
"""The number of renewals under load, each after 85 % of a session: about a minute in total."""
AT_FULL_SPEED = 4
"""Renewals during which records are sent as fast as send() accepts them; more would fill the disk."""
PAUSE_BETWEEN_ROUNDS = 0.02
"""Seconds between two rounds of 100 records after that."""
PARTITIONS = 4


def tls(kind: str = "right") -> dict[str, str]:
    """Return a listener's settings: its certificate and key as PEM text, and the authority whose clients it trusts."""
    leaf = broker_certificate(kind)
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": (chain_pem(leaf)),
        "ssl.keystore.key": (key_pem(leaf)),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": (authority_pem()),
    }


LISTENERS = {
    "CLIENT": {"security.protocol": "PLAINTEXT"},
    "TLS": {"security.protocol": "SSL", **tls()},
    "MUTUAL": {"security.protocol": "SSL", "ssl.client.auth": "required", **tls()},
    "EXPIRED": {"security.protocol": "SSL", **tls("expired")},
    "EARLY": {"security.protocol": "SSL", **tls("not yet valid")},
    "ELSEWHERE": {"security.protocol": "SSL", **tls("wrong host")},
    "SECURE": {
        "security.protocol": "SASL_SSL",
        **tls(),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "plain.sasl.jaas.config": f'{PLAIN} user_alice="alice-secret";',
        "scram-sha-256.sasl.jaas.config": f"{SCRAM};",
        "scram-sha-512.sasl.jaas.config": f"{SCRAM};",
    },
    "TOKENS": {
        "security.protocol": "SASL_SSL",
        **tls(),
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "oauthbearer.sasl.jaas.config": f'{OAUTH} unsecuredLoginStringClaim_sub="broker";',
        "oauthbearer.sasl.server.callback.handler.class": UNSECURED,
        "oauthbearer.connections.max.reauth.ms": SESSION_MS,
    },
    "OIDC": {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "oauthbearer.sasl.jaas.config": f"{OAUTH};",
        "oauthbearer.sasl.server.callback.handler.class": VALIDATOR,
        "oauthbearer.connections.max.reauth.ms": 3_600_000,
        "sasl.oauthbearer.expected.audience": "kafka",
    },
    "SESSIONS": {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "scram-sha-256.sasl.jaas.config": f"{SCRAM};",
        "scram-sha-256.connections.max.reauth.ms": SESSION_MS,
    },
}


class IdentityProvider(BaseHTTPRequestHandler):
    """A minimal OIDC provider: signed tokens for client credentials, and the key to check them."""

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def do_GET(self) -> None:
        numbers = self.key.public_key().public_numbers()
        exponent, modulus = (
            _base64(n.to_bytes((n.bit_length() + 7) // 8, "big")) for n in (numbers.e, numbers.n)
        )
        self._answer(
            {"keys": [{"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig", "n": modulus, "e": exponent}]}
        )

    def do_POST(self) -> None:
        user, _, password = (
            b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode().partition(":")
        )
        self.rfile.read(int(self.headers["Content-Length"]))
        if password != "svc-secret":
            self.send_error(401)
            return
        now = int(time.time())
        claims = {
            "sub": user,
            "aud": "kafka",
            "scope": "produce",
            "iat": now,
            "exp": now + 600,
            "iss": "tests",
        }
        signed = ".".join(
            _base64(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "1"}, claims)
        )
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        self._answer(
            {"access_token": f"{signed}.{_base64(signature)}", "expires_in": 600, "token_type": "Bearer"}
        )

    def _answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


@pytest.fixture(scope="module")
def identity_provider() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), IdentityProvider) as server:
        thread = threading.Thread(target=server.serve_forever, name="identity provider")
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def kafka(identity_provider: str, request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    keys = f"{identity_provider}/keys"
    users = [
        f"{mechanism}=[name={name},password={password}]"
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for name, password in (("alice", "alice-secret"), ("odd", ODD))
    ]
    cluster = ApacheKafka(
        listeners={**LISTENERS, "OIDC": {**LISTENERS["OIDC"], "sasl.oauthbearer.jwks.endpoint.url": keys}},
        format_args=[part for user in users for part in ("--add-scram", user)],
        jvm_args=(*LEAN, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"),
    )
    with running(cluster, lambda kafka: kafka.create_topic("t", 2), request=request) as started:
        yield started


TRUST = {"ssl_truststore_certificates": authority_pem()}
ALICE = {"sasl_plain_username": "alice", "sasl_plain_password": "alice-secret"}


def jws(subject: str = "alice", life: float = 3600.0) -> str:
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + life})
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


async def deliver(kafka: ApacheKafka, listener: str, **settings: object) -> None:
    async with Producer(kafka.bootstrap_servers_of(listener), linger_ms=0, **settings) as producer:
        metadata = await asyncio.wait_for(producer.send_and_wait("t", listener.encode(), partition=0), 30)
        assert metadata.offset >= 0


async def refusal(kafka: ApacheKafka, listener: str, **settings: object) -> BaseException:
    producer = Producer(kafka.bootstrap_servers_of(listener), **settings)
    began = asyncio.get_running_loop().time()
    with pytest.raises(KafkaError) as caught:
        await producer.start()
    await producer.close()
    assert asyncio.get_running_loop().time() - began < 15
    return caught.value


async def test_records_are_delivered_through_tls(kafka):
    await deliver(kafka, "TLS", security_protocol="SSL", **TRUST)


@pytest.mark.promise("Coming from other clients", "a port that hung up on every version is checked for TLS")
@pytest.mark.parametrize("listener", ["TLS", "MUTUAL"])
async def test_without_tls_the_error_says_that_the_port_is_for_tls(kafka, listener):
    error = await refusal(kafka, listener)

    assert [reason.peer for reason in error.reasons.values()] == ["TLS"]
    assert "set security_protocol to SSL or SASL_SSL" in str(error)


@pytest.mark.parametrize("kind", ["text", "PEM", "PKCS12"])
async def test_a_clients_certificate_is_accepted(kafka, tmp_path: Path, kind):
    leaf = client_certificate("alice")
    store = {
        "text": {
            "ssl_keystore_certificate_chain": chain_pem(leaf),
            "ssl_keystore_key": key_pem(leaf, "key-secret"),
            "ssl_key_password": "key-secret",
        },
        "PEM": {"ssl_keystore_location": write(tmp_path / "client.pem", key_pem(leaf) + chain_pem(leaf))},
        "PKCS12": {
            "ssl_keystore_location": write(tmp_path / "client.p12", pkcs12_store(leaf, "store-secret")),
            "ssl_keystore_password": "store-secret",
        },
    }[kind]
    trust = {
        "ssl_truststore_location": write(tmp_path / "trust.p12", pkcs12_trust("changeit")),
        "ssl_truststore_password": "changeit",
    }

    await deliver(kafka, "MUTUAL", security_protocol="SSL", **store, **trust)


async def test_a_client_without_a_certificate_or_with_an_unknown_one_is_rejected(kafka):
    error = await refusal(kafka, "MUTUAL", security_protocol="SSL", **TRUST)
    assert type(error) is TlsError
    assert "certificate" in str(error)

    strange = client_certificate("alice", strange=True)
    own = {"ssl_keystore_certificate_chain": chain_pem(strange), "ssl_keystore_key": key_pem(strange)}
    error = await refusal(kafka, "MUTUAL", security_protocol="SSL", **TRUST, **own)
    assert type(error) is TlsError
    assert "certificate" in str(error)


@pytest.mark.parametrize(
    ("listener", "told"),
    [
        ("EXPIRED", "has expired"),
        ("EARLY", "not yet valid"),
        ("ELSEWHERE", r"not valid for '127\.0\.0\.1'"),
    ],
)
async def test_an_invalid_certificate_of_a_broker_is_rejected(kafka, listener, told):
    error = await refusal(kafka, listener, security_protocol="SSL", **TRUST)

    assert type(error) is TlsError
    with pytest.raises(TlsError, match=told):
        raise error


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_user_and_password_are_accepted_through_tls(kafka, mechanism):
    await deliver(kafka, "SECURE", security_protocol="SASL_SSL", sasl_mechanism=mechanism, **ALICE, **TRUST)


async def test_a_password_that_saslprep_would_change_is_used_as_kafka_uses_it(kafka):
    odd = {"sasl_plain_username": "odd", "sasl_plain_password": ODD}

    await deliver(
        kafka, "SECURE", security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-256", **odd, **TRUST
    )


async def test_a_java_configuration_works_unchanged(kafka, tmp_path: Path):
    ca = write(tmp_path / "ca.pem", authority_pem())
    write(
        tmp_path / "client.properties",
        f"""bootstrap.servers={kafka.bootstrap_servers_of("SECURE")}
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={SCRAM} \\
    username="alice" password="alice-secret";
ssl.truststore.type=PEM
ssl.truststore.location={ca}
""",
    )
    async with Producer.from_properties(tmp_path / "client.properties") as producer:
        await asyncio.wait_for(producer.send_and_wait("t", b"java", partition=0), 30)


@pytest.mark.promise(
    "Security",
    "a failed authentication ends `start()` at once; a running producer tries again with growing pauses",
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password_ends_start_at_once_with_the_brokers_message(kafka, mechanism):
    wrong = {**ALICE, "sasl_plain_password": "wrong-secret"}
    error = await refusal(
        kafka, "SECURE", security_protocol="SASL_SSL", sasl_mechanism=mechanism, **wrong, **TRUST
    )

    assert type(error) is AuthenticationError
    assert "Authentication failed" in str(error)
    assert "wrong-secret" not in str(error)


async def test_the_error_names_the_mechanisms_that_the_broker_offers(kafka):
    error = await refusal(
        kafka,
        "SECURE",
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=jws,
        **TRUST,
    )

    assert type(error) is UnsupportedSaslMechanismError
    assert set(error.offered) == {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}


async def test_the_error_says_that_a_listener_is_without_sasl(kafka):
    error = await refusal(
        kafka, "TLS", security_protocol="SASL_SSL", sasl_mechanism="PLAIN", **ALICE, **TRUST
    )

    assert type(error) is AuthenticationError
    assert "does not support SASL" in str(error)


async def test_an_unsecured_token_is_accepted_and_a_bad_one_is_not(kafka):
    settings = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", **TRUST}
    await deliver(kafka, "TOKENS", sasl_oauth_token_provider=jws, **settings)

    error = await refusal(kafka, "TOKENS", sasl_oauth_token_provider=lambda: jws(life=-60), **settings)
    assert type(error) is AuthenticationError


async def test_a_token_of_an_oidc_provider_is_accepted_and_a_wrong_secret_is_not(kafka, identity_provider):
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": f"{identity_provider}/token",
        "sasl_oauthbearer_client_credentials_client_id": "svc",
        "sasl_oauthbearer_client_credentials_client_secret": "svc-secret",
    }
    await deliver(kafka, "OIDC", **settings)

    wrong = {**settings, "sasl_oauthbearer_client_credentials_client_secret": "wrong-secret"}
    error = await refusal(kafka, "OIDC", **wrong)
    assert type(error) is AuthenticationError
    assert "returned no token: HTTP status 401" in str(error)

    unsigned = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    error = await refusal(kafka, "OIDC", sasl_oauth_token_provider=jws, **unsigned)
    assert type(error) is AuthenticationError


@pytest.fixture
def authentications(monkeypatch) -> Counter[Authentication]:
    """The number of authentications of each connection."""
    counted: Counter[Authentication] = Counter()
    run = Authentication.run

    async def run_and_count(self: Authentication, *arguments: object) -> None:
        await run(self, *arguments)
        counted[self] += 1

    monkeypatch.setattr(Authentication, "run", run_and_count)
    return counted


async def in_order(servers: str, topic: str) -> list[int]:
    """Return the number of records in each partition. Fail at the first record that is out of order."""
    counts = [0] * PARTITIONS

    def take(message: Message) -> None:
        partition = message.partition()
        assert int(message.value()) == counts[partition], f"partition {partition}, offset {message.offset()}"
        counts[partition] += 1

    await scan(servers, topic, take)
    return counts


@pytest.mark.promise(
    "Security", "a session is re-authenticated in time, and nothing else is written meanwhile (KIP-368)"
)
@pytest.mark.parametrize("listener", ["SESSIONS", "TOKENS"])
async def test_sessions_of_five_seconds_under_load_lose_and_reorder_nothing(kafka, listener, authentications):
    """The load lasts for a minute, and continues while sessions are renewed."""
    began = asyncio.get_running_loop().time()
    settings = {
        "SESSIONS": {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", **ALICE},
        "TOKENS": {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": jws,
            **TRUST,
        },
    }[listener]
    topic = f"sessions-{listener.lower()}"
    await kafka.create_topic(topic, PARTITIONS)
    sent = 0
    async with (
        Producer(
            kafka.bootstrap_servers_of(listener), batch_size=16_384, buffer_memory=8 * 1024 * 1024, **settings
        ) as producer,
        asyncio.timeout(3 * RENEWALS * SESSION_MS / 1000),
    ):
        while max(authentications.values()) < 1 + RENEWALS:
            for partition in range(PARTITIONS):
                await producer.send(topic, b"%-1000d" % sent, partition=partition)
            sent += 1
            if max(authentications.values()) > AT_FULL_SPEED and sent % (100 // PARTITIONS) == 0:
                await asyncio.sleep(PAUSE_BETWEEN_ROUNDS)
        assert asyncio.get_running_loop().time() - began > 0.8 * RENEWALS * SESSION_MS / 1000
        await producer.flush()
        found = producer.metrics()
        closed = await producer.close()
    counts = await in_order(kafka.bootstrap_servers, topic)

    assert counts == [sent] * PARTITIONS
    assert (closed.delivered, closed.failed, closed.unknown) == (sent * PARTITIONS, 0, 0)
    assert sum(node.disconnects for node in found.nodes if node.node_id >= 0) == 0
