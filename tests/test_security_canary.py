"""One password, one key, one token: looked for in everything that is written while all goes well and all goes wrong."""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import json
import logging
import pickle
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress

import pytest

from aioproducer import Producer
from aioproducer.protocol.api import ApiKey
from aioproducer.testing import EmbeddedCluster, Security
from aioproducer.token_providers import OidcTokenProvider
from tests.certificates import authority_pem, chain_pem, client_certificate, key_pem, server_context, write
from tests.producing import QUICK
from tests.scripted_broker import LONG, Peer, ScriptedBroker, silence

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
    """The secrets as they might show: as they are, in Base64, in the bytes of PLAIN, in a proof's salt."""
    plain = [PASSWORD, KEY_PASSWORD, TOKEN, TOKEN.split(".")[1], CLIENT_SECRET]
    encoded = [base64.b64encode(text.encode()).decode().rstrip("=")[2:-2] for text in plain]
    key = key_pem(client_certificate("alice")).split("\n")[1]
    return [*plain, *encoded, key]


class Everything(logging.Handler):
    """All that is written: messages, their arguments, tracebacks with the local variables of every frame."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.out = io.StringIO()

    def emit(self, record: logging.LogRecord) -> None:
        self.write(record.getMessage(), record.args)
        if record.exc_info and record.exc_info[1] is not None:
            self.error(record.exc_info[1])

    def write(self, *things: object) -> None:
        for thing in things:
            print(thing, repr(thing), file=self.out)

    def error(self, error: BaseException | None) -> None:
        """The error as text and as a pickle, with each frame of the package as a crash reporter would show it."""
        seen: list[BaseException] = []
        while error is not None and error not in seen:
            seen.append(error)
            self.write(error, vars(error))
            with suppress(Exception):
                self.write(pickle.dumps(error))
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if (
                    "/aioproducer/" in frame.f_code.co_filename
                    and "/testing/" not in frame.f_code.co_filename
                ):
                    self.write(
                        frame.f_code.co_qualname,
                        {name: repr(value) for name, value in frame.f_locals.items()},
                    )
            error = error.__cause__ or error.__context__


@pytest.fixture
def everything() -> Iterator[Everything]:
    found = Everything()
    root = logging.getLogger()
    level = root.level
    root.addHandler(found)
    root.setLevel(logging.DEBUG)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield found
        found.write(*[str(one.message) for one in warned])
    root.removeHandler(found)
    root.setLevel(level)


def suite(tmp_path) -> list[tuple[str, Security | None, dict[str, object]]]:
    """Scenarios: a broker, and a producer's settings. Half of them go wrong."""
    alice = {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
    trust = {"ssl_truststore_certificates": authority_pem()}
    leaf = client_certificate("alice")
    own = {
        "ssl_keystore_certificate_chain": chain_pem(leaf),
        "ssl_keystore_key": key_pem(leaf),
    }
    locked = {
        "ssl_keystore_location": write(tmp_path / "own.pem", key_pem(leaf, KEY_PASSWORD) + chain_pem(leaf)),
        "ssl_key_password": KEY_PASSWORD,
    }
    users = {"alice": PASSWORD}
    scenarios: list[tuple[str, Security | None, dict[str, object]]] = []
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        settings = {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, **alice, **trust}
        scenarios += [
            (f"{mechanism}", Security(tls=server_context(), mechanisms=[mechanism], users=users), settings),
            (f"{mechanism} refused", Security(tls=server_context(), mechanisms=[mechanism]), settings),
            (f"{mechanism} not taken", Security(tls=server_context(), mechanisms=["OAUTHBEARER"]), settings),
            (
                f"{mechanism} forged",
                Security(
                    tls=server_context(), mechanisms=[mechanism], users=users, tamper=lambda _, __: b"v=AAAA"
                ),
                settings,
            ),
            (f"{mechanism} without SASL", Security(tls=server_context()), settings),
            (f"{mechanism} without TLS", Security(mechanisms=[mechanism], users=users), settings),
            (
                f"{mechanism} strange",
                Security(tls=server_context("strange"), mechanisms=[mechanism]),
                settings,
            ),
        ]
        callable_settings = {**settings, "sasl_credentials": lambda: ("alice", PASSWORD)}
        del callable_settings["sasl_plain_username"], callable_settings["sasl_plain_password"]
        wrong = {**callable_settings, "sasl_credentials": lambda: ("alice", PASSWORD, "too many")}
        failing = {**callable_settings, "sasl_credentials": lambda: {}["no such key"]}
        unsendable = {**callable_settings, "sasl_credentials": lambda: ("alice", PASSWORD + "\ud800")}
        scenarios += [
            (
                f"{mechanism} callable {number}",
                Security(tls=server_context(), mechanisms=[mechanism], users=users),
                one,
            )
            for number, one in enumerate((callable_settings, wrong, unsendable, failing))
        ]
    tokens = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    for provider in (lambda: TOKEN, lambda: TOKEN + "\n", lambda: (TOKEN, "never")):
        scenarios.append(
            (
                "OAUTHBEARER",
                Security(mechanisms=["OAUTHBEARER"]),
                {**tokens, "sasl_oauth_token_provider": provider},
            )
        )
    scenarios.append(
        (
            "OAUTHBEARER refused",
            Security(mechanisms=["OAUTHBEARER"], clock=lambda: 1e12),
            {**tokens, "sasl_oauth_token_provider": lambda: TOKEN},
        )
    )
    scenarios.append(
        (
            "OIDC unreachable",
            Security(mechanisms=["OAUTHBEARER"]),
            {
                **tokens,
                "sasl_oauth_token_provider": OidcTokenProvider(
                    "http://127.0.0.1:1/", "client", CLIENT_SECRET, attempts=1
                ),
            },
        )
    )
    mutual = {"security_protocol": "SSL", **trust}
    for certificate in (own, locked, {**locked, "ssl_key_password": KEY_PASSWORD + "x"}):
        scenarios.append(
            ("mTLS", Security(tls=server_context(wants_certificate=True)), {**mutual, **certificate})
        )
    return scenarios


async def play(cluster: EmbeddedCluster, settings: dict[str, object], everything: Everything) -> None:
    """Use a producer in every way that writes something."""
    limits = {"max_block_ms": 150, "delivery_timeout_ms": 150, "request_timeout_ms": 100}
    producer = Producer(cluster.bootstrap_servers, **{**QUICK, **limits, **settings})
    everything.write(producer, producer.config, vars(producer))
    everything.write(
        pickle.dumps(producer.config) if _can_be_pickled(producer) else "", copy.copy(producer.config)
    )
    try:
        await asyncio.wait_for(producer.start(), LONG)
        everything.write(vars(producer), producer.metrics())
        for delivery in [await producer.send("t", b"v") for _ in range(2)]:
            await asyncio.wait_for(delivery, LONG)
        everything.write(
            [vars(link.connection) for link in producer._brokers._links.values() if link.connection]
        )
        cluster.faults.add(ApiKey.PRODUCE, drop_before=True)
        await asyncio.wait_for(producer.send_and_wait("t", b"w"), LONG)
        await cluster.close_connections(0)
        cluster.faults.add(ApiKey.SASL_AUTHENTICATE, truncate=3, count=50)
        await asyncio.wait_for(producer.send_and_wait("t", b"x"), LONG)
    except Exception as error:
        everything.error(error)
    everything.write([repr(task) for task in asyncio.all_tasks()])
    everything.write([str(task.get_stack()) for task in asyncio.all_tasks()])
    everything.write(await producer.close(timeout=0.1))
    everything.write(*[repr(seen.message) for seen in cluster.requests])


def _can_be_pickled(producer: Producer) -> bool:
    try:
        pickle.dumps(producer.config)
    except Exception:
        return False  # a function among the settings
    return True


async def test_threat_20_no_secret_is_in_anything_that_was_written(everything, tmp_path):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: everything.write(json.dumps(context, default=repr)))
    for name, security, settings in suite(tmp_path):
        async with EmbeddedCluster(security=security, topics={"t": 1}) as cluster:
            await play(cluster, settings, everything)
        everything.write(name)

    written = everything.out.getvalue()
    assert "SCRAM-SHA-512 forged" in written
    assert "sasl_plain_password" in written
    for needle in needles():
        at = written.find(needle)
        assert at < 0, f"found: ...{written[max(0, at - 300) : at + 100]}"


async def test_a_broker_that_repeats_the_password_does_not_get_it_into_the_log(everything):
    """PLAIN hands it over: a broker that sends it back as its error text is one that could log it itself."""

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
            **{**QUICK, "max_block_ms": 200},
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

    assert PASSWORD not in everything.out.getvalue()


def test_the_canary_would_be_found(everything):
    def fails(password: str) -> None:
        raise ValueError("wrong")

    logging.getLogger("aioproducer").debug("password %s", PASSWORD)
    try:
        fails(KEY_PASSWORD)
    except ValueError as error:
        everything.error(error)

    assert PASSWORD in everything.out.getvalue()
