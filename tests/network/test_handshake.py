"""The handshake of a connection: versions, rejections, and peers that are not Kafka brokers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from aioproducer.cluster import Cluster
from aioproducer.errors import (
    BrokerConnectionError,
    BrokerError,
    ProtocolError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from aioproducer.network.connection_state import ConnectionState
from aioproducer.network.handshake import FIRST_WITH_FEATURES, BrokerVersions, learn_versions
from aioproducer.protocol.api import ApiKey, VersionRange
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ApiVersionsResponse, MetadataRequest
from aioproducer.types import Node
from tests.conftest import in_virtual_time
from tests.support.scripted_broker import (
    HOST,
    LONG,
    Net,
    Peer,
    ScriptedBroker,
    api_versions,
    dead_port,
    make_connection,
    silence,
    until,
)


@pytest.mark.promise("Accumulator, sender, connections", "versions are negotiated on each connection")
@pytest.mark.promise("KIPs", "KIP-511: the client's name, and the downgrade of ApiVersions")
async def test_the_handshake_names_the_client_and_returns_versions_and_features():
    async def serve(peer: Peer) -> None:
        header, message = await peer.request()
        assert (header.api_key, header.version, header.client_id) == (ApiKey.API_VERSIONS, 4, "me")
        assert message.client_software_name == "aioproducer"
        assert message.client_software_version[0].isalnum()
        answer = api_versions(metadata=(5, 9), produce=(0, 20))
        answer.finalized_features = [
            ApiVersionsResponse.FinalizedFeatureKey(name="transaction.version", max_version_level=2)
        ]
        answer.finalized_features_epoch = 3
        peer.answer(header, answer)
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port, client_id="me")
        await connection.connect()

        assert connection.state is ConnectionState.READY
        assert connection.can_send
        assert connection.versions.of(ApiKey.METADATA) == 9
        assert connection.versions.of(ApiKey.PRODUCE) == 13
        assert connection.versions.of(ApiKey.PRODUCE, 11) == 11
        assert connection.versions.features == {"transaction.version": 2}
        assert connection.versions.features_epoch == 3
        await connection.close()


@pytest.mark.promise("Protocol", "ApiVersions 0-4 are supported, with the downgrade")
@pytest.mark.promise("KIPs", "KIP-511: the client's name, and the downgrade of ApiVersions")
@pytest.mark.parametrize(("hint", "second"), [((0, 3), 3), ((0, 2), 2), ((0, 4), 3), ((0, 99), 3), (None, 0)])
async def test_a_broker_that_rejects_the_version_is_asked_once_more_with_a_lower_one(hint, second):
    asked = []

    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        asked.append(header.version)
        refusal = api_versions(api_versions=hint) if hint else ApiVersionsResponse()
        refusal.error_code = ErrorCode.UNSUPPORTED_VERSION
        peer.answer(header, refusal, version=0)
        header, _ = await peer.request()
        asked.append(header.version)
        peer.answer(header, api_versions(metadata=(0, 8)))
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port)
        await connection.connect()
        assert connection.versions.of(ApiKey.METADATA) == 8
        await connection.close()

    assert asked == [4, second]


async def test_a_broker_that_rejects_every_version_gets_only_two_requests():
    asked = []

    async def serve(peer: Peer) -> None:
        while True:
            header, _ = await peer.request()
            asked.append(header.version)
            answer = api_versions()
            answer.error_code = ErrorCode.UNSUPPORTED_VERSION
            peer.answer(header, answer, version=0)

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port)
        with pytest.raises(BrokerError, match="UNSUPPORTED_VERSION"):
            await connection.connect()

    assert len(asked) == 2
    assert connection.is_gone


async def test_a_rejected_handshake_names_the_error():
    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        peer.answer(header, ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        with pytest.raises(BrokerError, match="INVALID_REQUEST") as caught:
            await make_connection(broker.port).connect()

    assert caught.value.code == 42
    assert broker.address in str(caught.value)


async def test_an_inverted_version_range_counts_as_not_offered():
    async def serve(peer: Peer) -> None:
        await peer.handshake(produce=(9, 3), metadata=(-1, -1))
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port)
        await connection.connect()
        for api_key in (ApiKey.PRODUCE, ApiKey.METADATA):
            with pytest.raises(UnsupportedVersionError, match=api_key.name):
                connection.versions.of(api_key)
        await connection.close()


@pytest.mark.promise("Protocol", "frame sizes are capped before and after authentication")
@pytest.mark.parametrize(
    ("greeting", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "TLS"),
        (b"\x16\x03\x01\x00\x02\x02\x46", "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "begins with .SSH-."),
        (b"\xff\xff\xff\xff", "frame of -1 bytes"),
        (b"\x00\x01\x00\x01", "limit is 65536 bytes"),
        (b"\x00\x00\x00\x00", "too few"),
        (b"\x00\x00\x00\x03abc", "too few"),
    ],
)
async def test_a_peer_that_is_not_a_kafka_broker_is_named_with_its_address(greeting, told):
    async def serve(peer: Peer) -> None:
        await peer.reader.read(1)
        peer.writer.write(greeting)
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port)
        with pytest.raises(ProtocolError, match=told) as caught:
            await connection.connect()

    assert broker.address in str(caught.value)
    assert connection.is_gone


@in_virtual_time
async def test_a_silent_peer_is_limited_by_the_set_up_time():
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with ScriptedBroker(silence) as broker:
        connection = make_connection(broker.port, socket_connection_setup_timeout_ms=50)
        with pytest.raises(RequestTimedOutError, match="is this a Kafka broker's port") as caught:
            await connection.connect()

    assert loop.time() - began == pytest.approx(0.05, abs=0.01)
    assert broker.address in str(caught.value)
    assert connection.is_gone


@pytest.mark.parametrize("step", ["TLS", "ApiVersions", "SASL"])
@in_virtual_time
async def test_each_response_of_the_handshake_is_also_limited_by_the_request_timeout(step):
    settings = {"request_timeout_ms": 50}
    if step == "TLS":
        settings |= {"security_protocol": "SSL"}
    elif step == "SASL":
        settings |= {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "user",
            "sasl_plain_password": "secret",
        }

    async def serve(peer: Peer) -> None:
        if step == "SASL":
            await peer.handshake()
        await silence(peer)

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port, socket_connection_setup_timeout_ms=60_000, **settings)
        with pytest.raises(RequestTimedOutError, match=r"within 0\.05 s"):
            await asyncio.wait_for(connection.connect(), LONG)

    assert connection.is_gone


async def test_a_peer_that_closes_during_the_handshake_is_reported():
    async def serve(peer: Peer) -> None:
        await peer.request()

    async with ScriptedBroker(serve) as broker:
        with pytest.raises(BrokerConnectionError, match="closed the connection during the handshake"):
            await make_connection(broker.port).connect()


async def test_a_peer_that_answers_the_handshake_and_closes_immediately_is_handled():
    async def serve(peer: Peer) -> None:
        await peer.handshake()

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port)
        try:
            await connection.connect()
        except BrokerConnectionError:
            pass
        await until(lambda: connection.is_gone)

    assert isinstance(connection.error, BrokerConnectionError)


async def test_a_refused_connection_names_the_address():
    port = dead_port()
    connection = make_connection(port)
    with pytest.raises(BrokerConnectionError, match=f"{HOST}:{port}") as caught:
        await connection.connect()

    assert caught.value.written is False
    assert connection.is_gone


@pytest.mark.parametrize("handshake", [True, False])
async def test_cancelling_connect_leaves_nothing_open(handshake):
    asked = asyncio.Event()
    gone = asyncio.Event()

    async def serve(peer: Peer) -> None:
        if handshake:
            await peer.request()
        asked.set()
        await peer.read_to_end()
        gone.set()

    async with ScriptedBroker(serve) as broker:
        connection = make_connection(broker.port)
        task = asyncio.create_task(connection.connect())
        await asyncio.wait_for(asked.wait(), LONG)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert connection.is_gone
        await asyncio.wait_for(gone.wait(), LONG)


@asynccontextmanager
async def net_of(broker):
    """Run a Net in which `broker` is node 0."""
    async with Net("127.0.0.1:1") as net:
        net.brokers.update(Cluster({0: Node(0, HOST, broker.port)}, 0, "c", {}))
        yield net


@in_virtual_time
async def test_features_are_learned_and_the_newest_version_is_used_again_if_only_an_intermediary_closed_connections():
    """A proxy closes connections in this way while its broker is down. If it is not a proxy, four closed connections
    in a row mean Azure Event Hubs."""
    asked = []

    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        asked.append(header.version)
        if len(asked) <= 4:
            return  # the connection is closed
        answer = api_versions()
        peer.answer(header, answer)
        if header.version < 3:
            header, _ = await peer.request()
            asked.append(header.version)
            answer = api_versions()
            answer.finalized_features = [
                ApiVersionsResponse.FinalizedFeatureKey(name="transaction.version", max_version_level=2)
            ]
            peer.answer(header, answer)
            await peer.request()
        await peer.read_to_end()

    async with ScriptedBroker(serve) as broker, net_of(broker) as net:
        await net.become_ready(0)
        assert asked == [4, 4, 3, 3, 0, 3]
        assert net.brokers.finalized_feature("transaction.version") == 2

        with pytest.raises(BrokerConnectionError):  # the peer closes
            await net.brokers.request(0, MetadataRequest(topics=[]), LONG)
        await net.become_ready(0)

    assert asked[6:] == [4]


async def test_a_broker_that_closes_the_connection_on_an_unknown_version_is_not_asked_with_it_again():
    asked = []

    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        asked.append(header.version)
        if header.version > 3:
            return  # the connection is closed
        peer.answer(header, api_versions(api_versions=(0, 3)))
        if len(asked) == 3:
            await peer.request()
            return
        await peer.read_to_end()

    async with ScriptedBroker(serve) as broker, net_of(broker) as net:
        await net.become_ready(0)
        with pytest.raises(BrokerConnectionError):  # the peer closes
            await net.brokers.request(0, MetadataRequest(topics=[]), LONG)
        await net.become_ready(0)

    assert asked == [4, 4, 3, 3]


# ------------------------------------------------------------------------------------------------- without a socket


class Versions:
    """A peer that answers ApiVersions requests with the given responses, in order."""

    def __init__(self, *answers: ApiVersionsResponse) -> None:
        self._answers = list(answers)
        self.asked: list[int] = []

    async def ask(self, request, version):
        self.asked.append(version)
        return self._answers.pop(0)


def features_of(level: int) -> ApiVersionsResponse:
    answer = api_versions(api_versions=(0, 4))
    answer.finalized_features = [
        ApiVersionsResponse.FinalizedFeatureKey(name="transaction.version", max_version_level=level)
    ]
    return answer


async def test_after_a_low_version_a_broker_is_asked_once_more_with_a_version_that_has_features():
    broker = Versions(api_versions(api_versions=(0, 4)), features_of(2))

    versions = await learn_versions(broker.ask, "broker 1", asked=0)

    assert broker.asked == [0, FIRST_WITH_FEATURES]
    assert versions.features == {"transaction.version": 2}


async def test_a_broker_without_a_version_that_has_features_is_asked_only_once():
    broker = Versions(api_versions(api_versions=(0, FIRST_WITH_FEATURES - 1)))

    versions = await learn_versions(broker.ask, "broker 1", asked=0)

    assert broker.asked == [0]
    assert versions.features == {}
    assert versions.features_epoch == -1


def test_the_newest_common_version_up_to_the_ceiling_is_used():
    versions = BrokerVersions({ApiKey.PRODUCE: VersionRange(7, 11), ApiKey.METADATA: VersionRange(90, 99)})

    assert versions.of(ApiKey.PRODUCE) == 11
    assert versions.of(ApiKey.PRODUCE, 9) == 9
    assert versions.of(ApiKey.PRODUCE) == 11, "the ceiling of one request does not apply to the next"
    for key, ceiling in ((ApiKey.PRODUCE, 6), (ApiKey.METADATA, None), (ApiKey.END_TXN, None)):
        with pytest.raises(UnsupportedVersionError):
            versions.of(key, ceiling)
