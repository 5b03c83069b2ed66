"""The threats in SECURITY.md, by their numbers: each has a test, or a paragraph there that says why it has none."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import sys
import time
import tracemalloc
import zlib
from pathlib import Path

import cramjam
import pytest
from isal import isal_zlib

from aioproducer import DeliveryTimeoutError, Outcome, Producer
from aioproducer.errors import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    ConfigError,
    InvalidTopicError,
    KafkaError,
    ProtocolError,
    RequestTimedOutError,
    TlsError,
    UnsupportedSaslMechanismError,
)
from aioproducer.network import handshake
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.compression import zstd
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    MetadataRequest,
    MetadataResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from aioproducer.security.login import Login
from aioproducer.security.tls import make_context
from aioproducer.settings.keys import KEYS
from aioproducer.settings.table import SETTINGS
from aioproducer.testing import EmbeddedCluster, Security
from tests.conftest import MS, in_virtual_time
from tests.security.test_mechanisms import ALICE, SCRAM, TRUST, USERS, refusal
from tests.support.certificates import server_context
from tests.support.producing import PRODUCE, QUICK, error_of, quick_producer
from tests.support.scripted_broker import (
    HOST,
    LONG,
    Net,
    Peer,
    ScriptedBroker,
    api_versions,
    make_config,
    make_connection,
    metadata_response,
    silence,
    until,
)

ROOT = Path(__file__).parent.parent.parent
MIB = 1024 * 1024


async def answered_with(frame: bytes) -> BaseException:
    """Return the error of a Metadata request whose answer is `frame`, and check that no memory is allocated for it."""

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        peer.writer.write(frame.replace(b"\xc0\xde\xc0\xde", header.correlation_id.to_bytes(4, "big")))
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port)
        await connection.connect()
        tracemalloc.start()
        try:
            future = connection.request(MetadataRequest(topics=[]), timeout=LONG, version_ceiling=9)
            await asyncio.wait([future], timeout=LONG)
            assert tracemalloc.get_traced_memory()[1] < 8 * MIB
        finally:
            tracemalloc.stop()
        await until(lambda: connection.is_gone)
    error = future.exception()
    assert error is not None
    return error


def framed(body: bytes) -> bytes:
    """Return a frame with room for the correlation id of the request."""
    return (len(body) + 4).to_bytes(4, "big") + b"\xc0\xde\xc0\xde" + body


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (b"\x7f\xff\xff\xff", "limit is 67108864 bytes"),
        (b"\x80\x00\x00\x00", "-2147483648 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "TLS"),
    ],
)
async def test_threat_01_a_length_is_believed_up_to_a_limit_and_nothing_is_allocated_from_it(start, told):
    error = await answered_with(start)

    assert isinstance(error, ProtocolError)
    assert told in str(error)


async def test_threat_02_a_count_beyond_the_bytes_that_are_left_is_refused():
    # Header tags, throttle time, then a count of 2^31 - 2 brokers.
    error = await answered_with(framed(b"\x00" + bytes(4) + b"\xff\xff\xff\xff\x07" + bytes(40)))

    assert isinstance(error, ProtocolError)


@pytest.mark.parametrize(
    "tags", [b"\xff" * 11, b"\xff\xff\xff\xff\x0f", b"\x02\x00\x00\x00\x00", b"\x01\x07\xff\xff\xff\x7f"]
)
async def test_threat_03_overlong_varints_and_floods_of_tags_are_refused(tags):
    error = await answered_with(framed(tags + bytes(8)))

    assert isinstance(error, ProtocolError)


DECOMPRESSORS = (zlib, cramjam, cramjam.snappy, cramjam.gzip, cramjam.lz4, cramjam.zstd)
DECOMPRESSORS += (zstd, isal_zlib)


@pytest.fixture
def no_decompression(monkeypatch) -> list[str]:
    """Replace every decompression function of these libraries with one that raises; return their names."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the producer decompresses something")

    names = [
        (library, name) for library in DECOMPRESSORS for name in dir(library) if "decompress" in name.lower()
    ]
    for library, name in names:
        monkeypatch.setattr(library, name, refuse)
    return [f"{library.__name__}.{name}" for library, name in names]


async def test_threat_04_the_producer_decompresses_nothing(no_decompression):
    """The producer delivers with each codec to a cluster in another process, and rejects a compressed response."""
    assert {"zlib.decompressobj", "lz4.decompress", f"{zstd.__name__}.ZstdDecompressor"} <= set(
        no_decompression
    )
    bomb = zlib.compressobj(9, wbits=31)
    packed = bomb.compress(bytes(64 * MIB)) + bomb.flush()
    command = [sys.executable, "-m", "aioproducer.testing", "--port", "0", "--topic", "t:1"]
    cluster = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        line = (await asyncio.wait_for(cluster.stdout.readline(), 4 * LONG)).decode()
        servers = re.search(r"[\w.]+:\d+", line)[0]
        for offset, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
            async with Producer(servers, compression_type=codec, **QUICK) as producer:
                assert (await producer.send_and_wait("t", b"v" * 5000)).offset == offset
    finally:
        cluster.terminate()
        await cluster.communicate()

    assert isinstance(await answered_with(framed(packed)), ProtocolError)


async def test_threat_05_an_answer_that_drips_has_the_deadline_of_the_whole_request():
    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        for byte in peer.frame(header, MetadataResponse()):
            peer.writer.write(bytes([byte]))
            await asyncio.sleep(20 * MS)

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port)
        await connection.connect()
        with pytest.raises(RequestTimedOutError):
            await connection.request(MetadataRequest(topics=[]), timeout=100 * MS)
        await until(lambda: connection.is_gone)


async def test_threat_06_a_throttle_of_24_days_is_limited_to_a_minute(caplog):
    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        peer.answer(header, MetadataResponse(throttle_time_ms=2**31 - 1))
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port)
        await connection.connect()
        await connection.request(MetadataRequest(topics=[]), timeout=LONG)
        left = connection.throttled_until - asyncio.get_running_loop().time()
        await connection.close()

    assert 50 < left <= 60.001
    assert "throttle time of" in caplog.text


@in_virtual_time
async def test_threat_06_the_delivery_timeout_keeps_running_during_a_throttle_of_24_days():
    loop = asyncio.get_running_loop()
    settings = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 5_000}
    async with EmbeddedCluster(topics={"t": 1}) as cluster, quick_producer(cluster, **settings) as producer:
        cluster.faults.add(PRODUCE, throttle_ms=2**31 - 1)
        await producer.send_and_wait("t", b"0")
        began = loop.time()

        error = await error_of(producer.send_and_wait("t", b"1"), 30)

        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is Outcome.NOT_PERSISTED
        assert loop.time() - began == pytest.approx(5, abs=0.1)
        assert len(cluster.requests_of(PRODUCE)) == 1


async def test_threat_07_a_mechanism_is_never_replaced_by_a_weaker_one():
    security = Security(mechanisms=["PLAIN"], users=USERS)
    async with EmbeddedCluster(security=security) as cluster:
        error = await refusal(cluster.bootstrap_servers, **SCRAM)

        assert type(error) is UnsupportedSaslMechanismError
        assert cluster.requests_of(ApiKey.SASL_AUTHENTICATE) == []
    with pytest.raises(ConfigError, match="sasl_plain_without_tls"):
        Producer("h:1", **{**SCRAM, "sasl_mechanism": "PLAIN"})


async def scram_with(server_first: str) -> tuple[BaseException, list[bytes]]:
    """Return the error of a connection to a broker whose first SCRAM message is `server_first`, and the bytes that
    the broker received."""
    sent = []

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        peer.answer(header, SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"]))
        header, message = await peer.request()
        sent.append(message.auth_bytes)
        nonce = message.auth_bytes.rpartition(b"r=")[2].decode()
        peer.answer(
            header, SaslAuthenticateResponse(auth_bytes=server_first.replace("NONCE", nonce).encode())
        )
        header, message = await peer.request()
        sent.append(message.auth_bytes)
        peer.answer(header, SaslAuthenticateResponse(auth_bytes=b"v=" + b"A" * 43 + b"="))
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        with pytest.raises(KafkaError) as caught:
            await make_connection(broker.port, **SCRAM).connect()
    return caught.value, sent


@pytest.mark.parametrize("iterations", [1, 4095])
async def test_threat_08_no_proof_is_given_for_few_iterations(iterations):
    error, sent = await scram_with(f"r=NONCEx,s=c2FsdA==,i={iterations}")

    assert type(error) is AuthenticationError
    assert len(sent) == 1


async def test_threat_09_too_many_iterations_are_not_computed_and_allowed_ones_do_not_block_the_loop():
    began = time.process_time()
    error, sent = await scram_with("r=NONCEx,s=c2FsdA==,i=1000001")
    assert type(error) is AuthenticationError
    assert len(sent) == 1
    assert time.process_time() - began < 0.2

    turns, running = 0, True

    async def watch() -> None:
        nonlocal turns
        while running:
            await asyncio.sleep(0.001)
            turns += 1

    watching = asyncio.create_task(watch())
    error, sent = await scram_with("r=NONCEx,s=c2FsdA==,i=1000000")
    running = False
    await watching
    assert len(sent) == 2
    # The computation takes some 300 ms; on the loop, it would leave only about a dozen turns.
    assert turns > 50


@pytest.mark.parametrize("first", ["r=NONCE,s=c2FsdA==,i=4096", "r=other,s=c2FsdA==,i=4096"])
async def test_threat_10_a_nonce_that_is_not_ours_gets_no_proof(first):
    error, sent = await scram_with(first)

    assert type(error) is AuthenticationError
    assert len(sent) == 1


async def test_threat_10_a_signature_that_is_forged_ends_the_connection():
    error, sent = await scram_with("r=NONCEx,s=c2FsdA==,i=4096")

    assert "signature is wrong" in str(error)
    assert len(sent) == 2


OFF = ("", "none", "false", "no", "off", "0", "null", "*", False, None, 0, [], "ssl.CERT_NONE")


def test_threat_11_no_setting_switches_the_check_of_the_host_name_off():
    """Each key of any client is rejected with each value that could mean "off", or the name is still checked."""
    accepted = 0
    own_decision = {"security_protocol", "ssl_context"}
    for key in sorted({*KEYS, *SETTINGS} - own_decision - {"security.protocol"}):
        for value in OFF:
            given = {"bootstrap.servers": "h:1", "security.protocol": "SSL", **TRUST, key: value}
            try:
                effective = Producer.from_config(given).config
                context = make_context(effective)
            except ConfigError:
                continue
            accepted += 1
            assert context.check_hostname, (key, value)
            assert context.verify_mode == ssl.CERT_REQUIRED, (key, value)
    assert accepted > 500
    for key in ("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"):
        with pytest.raises(ConfigError, match="names are always verified"):
            Producer.from_config({"bootstrap.servers": "h:1", "security.protocol": "SSL", key: ""})


async def test_threat_11_a_certificate_of_another_name_is_refused():
    async with EmbeddedCluster(security=Security(tls=server_context("wrong host"))) as cluster:
        assert type(await refusal(cluster.bootstrap_servers, security_protocol="SSL", **TRUST)) is TlsError


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_threat_12_no_version_below_tls_1_2_is_used():
    assert (
        make_context(make_config(security_protocol="SSL", **TRUST)).minimum_version == ssl.TLSVersion.TLSv1_2
    )
    weak = ssl.create_default_context()
    weak.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ConfigError, match=r"below 1\.2"):
        Producer("h:1", security_protocol="SSL", ssl_context=weak)


@pytest.mark.promise(
    "Security", "no request and no password is sent before the broker's certificate is verified"
)
async def test_threat_13_a_plaintext_listener_in_place_of_a_tls_one_gets_only_a_client_hello():
    got = bytearray()

    async def serve(peer: Peer) -> None:
        got.extend(await peer.reader.read(65536))
        peer.writer.write(bytes(64))
        got.extend(await peer.reader.read(65536))

    async with ScriptedBroker(serve) as broker:
        settings = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", **ALICE, **TRUST}
        with pytest.raises(KafkaError):
            await make_connection(broker.port, **settings).connect()

    assert got[:2] == b"\x16\x03"
    assert b"alice" not in got


async def test_threat_14_a_broker_that_is_only_advertised_gets_no_password_before_its_certificate_was_checked():
    good = Security(tls=server_context(), mechanisms=["PLAIN"], users=USERS)
    evil = Security(tls=server_context("strange"), mechanisms=["PLAIN"])
    settings = {**QUICK, "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", **ALICE, **TRUST}
    async with EmbeddedCluster(security=evil) as internal, EmbeddedCluster(security=good) as cluster:
        servers = cluster.bootstrap_servers
        cluster.broker(0).port = internal.broker(0).port  # advertised in metadata from now on
        async with Producer(servers, **{**settings, "max_block_ms": 200}) as producer:
            with pytest.raises(KafkaError):
                await producer.send("t", b"x")
        assert list(internal.requests) == []


@pytest.mark.parametrize(
    ("node_id", "host", "port"),
    [
        (-5, HOST, 9092),
        (1, "user@evil.example", 9092),
        (1, "a b", 9092),
        (1, "a\nb", 9092),
        (1, "", 9092),
        (1, HOST, 0),
        (1, HOST, 65536),
        (1, HOST, -1),
    ],
)
async def test_threat_15_hostile_ids_and_addresses_are_left_out(node_id, host, port):
    async def serve(peer: Peer) -> None:
        await peer.handshake()
        while True:
            header, _ = await peer.request()
            answer = metadata_response(broker.port)
            answer.brokers.append(
                MetadataResponse.MetadataResponseBroker(node_id=node_id, host=host, port=port)
            )
            peer.answer(header, answer)

    async with ScriptedBroker(serve) as broker, Net(broker.address) as net:
        await net.start()

        assert [node[:3] for node in net.brokers.nodes] == [(0, HOST, broker.port)]


async def test_threat_16_a_broker_cannot_send_us_round_in_circles():
    asked = []

    async def serve(peer: Peer) -> None:
        while True:
            header, _ = await peer.request()
            asked.append(header.version)
            peer.answer(header, _refused(), version=0)

    def _refused():
        answer = api_versions()
        answer.error_code = ErrorCode.UNSUPPORTED_VERSION
        return answer

    async with ScriptedBroker(serve) as broker:
        with pytest.raises(BrokerError):
            await make_connection(broker.port).connect()

    assert len(asked) == 2


class Endless:
    """A mechanism that answers every challenge, as a Kerberos library may do."""

    name, is_slow = "SCRAM-SHA-256", False

    def step(self, challenge: bytes | None) -> bytes:
        return b"and another thing"

    def conceal(self, text: str) -> str:
        return text


async def test_threat_16_an_authentication_has_at_most_16_tokens(monkeypatch):
    tokens = 0

    async def mechanism(*_: object) -> Endless:
        return Endless()

    async def serve(peer: Peer) -> None:
        nonlocal tokens
        await peer.handshake()
        header, _ = await peer.request()
        peer.answer(header, SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"]))
        while True:
            header, _ = await peer.request()
            tokens += 1
            peer.answer(header, SaslAuthenticateResponse(auth_bytes=b"go on"))

    monkeypatch.setattr(Login, "mechanism", mechanism)
    async with ScriptedBroker(serve) as broker:
        with pytest.raises(AuthenticationError, match="SCRAM-SHA-256 did not finish after 16 tokens"):
            await make_connection(broker.port, **SCRAM).connect()

    assert tokens == 16


async def test_threat_19_another_cluster_at_the_same_address_is_noticed(caplog):
    ids = iter(["first\x1b[32m", "second\x1b[31m"])

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        while True:
            header, _ = await peer.request()
            answer = metadata_response(broker.port)
            answer.cluster_id = next(ids, "second\x1b[31m")
            peer.answer(header, answer)

    async with ScriptedBroker(serve) as broker, Net(broker.address, metadata_max_age_ms=30) as net:
        await net.start()
        await until(lambda: "the cluster id changed from" in caplog.text)

    # This does not use caplog.text, from which pytest removes colours.
    [told] = [
        text for text in map(logging.LogRecord.getMessage, caplog.records) if "the cluster id changed" in text
    ]
    assert r"the cluster id changed from first\x1b[32m to second\x1b[31m" in told


@pytest.mark.parametrize(
    "settings",
    [
        {
            "sasl.jaas.config": 'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://evil";'
        },
        {
            "sasl.jaas.config": 'com.sun.security.auth.module.LdapLoginModule required userProvider="ldap://evil";'
        },
        {"sasl.login.class": "evil.Login"},
        {"sasl.login.callback.handler.class": "evil.Handler"},
        {"ssl.engine.factory.class": "evil.Factory"},
        {"plugin.library.paths": "/opt/evil.so"},
        {
            "sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd",
            "sasl.oauthbearer.client.credentials.client.id": "a",
            "sasl.oauthbearer.client.credentials.client.secret": "b",
        },
        {
            "sasl.oauthbearer.token.endpoint.url": "http://169.254.169.254/latest",
            "sasl.oauthbearer.client.credentials.client.id": "a",
            "sasl.oauthbearer.client.credentials.client.secret": "b",
        },
    ],
)
def test_threat_21_settings_load_no_code_and_open_no_address_but_https(settings):
    mechanism = "OAUTHBEARER" if "sasl.oauthbearer.token.endpoint.url" in settings else "PLAIN"
    base = {"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism}

    with pytest.raises(ConfigError):
        Producer.from_config({**base, **settings})


async def test_threat_22_texts_of_a_broker_are_escaped_and_shortened():
    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        peer.answer(header, SaslHandshakeResponse(error_code=33, mechanisms=["\x1b[2J\n", "x" * 3_000] * 20))
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        with pytest.raises(UnsupportedSaslMechanismError) as caught:
            await make_connection(broker.port, **SCRAM).connect()

    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 4096


def test_threat_23_the_name_of_the_software_is_what_brokers_accept():
    assert re.fullmatch(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", handshake._own_version())


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "a\x00", "ä", "x" * 250, "a\nb"])
async def test_threat_26_a_topic_that_kafka_would_refuse_is_refused_here(topic):
    async with EmbeddedCluster() as cluster, Producer(cluster.bootstrap_servers, **QUICK) as producer:
        before = len(cluster.requests)
        with pytest.raises(InvalidTopicError):
            await producer.send(topic, b"x")

        assert len(cluster.requests) == before


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big"))


@pytest.mark.parametrize(("idempotence", "times"), [(True, 1), (False, 2)])
async def test_threat_27_a_batch_that_is_repeated_is_stored_once_with_idempotence(idempotence, times):
    async def serve(peer: Peer) -> None:
        answers, requests = await asyncio.open_connection(HOST, port)
        try:
            while True:
                frame = await _frame(peer.reader)
                is_repeated = int.from_bytes(frame[4:6], "big") == ApiKey.PRODUCE
                for _ in range(2 if is_repeated else 1):
                    requests.write(frame)
                    answer = await _frame(answers)
                peer.writer.write(answer)
        finally:
            requests.close()

    async with EmbeddedCluster(topics={"t": 1}) as cluster, ScriptedBroker(serve) as between:
        port, cluster.broker(0).port = cluster.broker(0).port, between.port  # metadata names the proxy
        async with Producer(between.address, **QUICK, enable_idempotence=idempotence) as producer:
            for number in range(3):
                await producer.send_and_wait("t", b"%d" % number)

        assert len(cluster.requests_of(ApiKey.PRODUCE)) == 6
        stored = [int(record.value) for record in cluster.records("t", 0)]
        assert stored == [number for number in range(3) for _ in range(times)]


async def test_a_hanging_handshake_is_abandoned_after_the_set_up_time():
    async with ScriptedBroker(silence) as broker:
        settings = {"security_protocol": "SSL", "socket_connection_setup_timeout_ms": 1200, **TRUST}
        with pytest.raises(BrokerConnectionError, match=r"no TLS handshake within 1\.2 s"):
            await make_connection(broker.port, **settings).connect()


# ------------------------------------------------------------------------------------------------------- SECURITY.md


def threats() -> dict[int, str]:
    """Return the last column of each row of the table, by the number of the threat."""
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    return {int(number): last for number, last in rows}


@pytest.mark.promise("Security", "each of the 29 threats has a test or a reason")
def test_each_of_the_29_threats_has_a_test_or_a_paragraph_that_says_why_none_can_be():
    text = (ROOT / "SECURITY.md").read_text()
    defined = {
        name: path.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }

    assert sorted(threats()) == list(range(1, 30))
    for number, last in threats().items():
        if "`test_" not in last:
            assert re.search(rf"^\*\*{number}\.", text, re.MULTILINE), f"threat {number} has neither"
    # The paragraphs must also name existing tests.
    assert set(re.findall(r"`(test_\w+)`", text)) - set(defined) == set()
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make (\w+)`", text)) - set(targets) == set()
    named = {int(name[12:14]) for name in defined if name.startswith("test_threat_")}
    assert named == {number for number, last in threats().items() if "test_threat_" in last}
