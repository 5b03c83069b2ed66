"""The listeners of a real broker: their declarations, and connections of clients to them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import KafkaError, Producer

import aioproducer
from aioproducer.protocol.messages import ApiVersionsRequest
from aioproducer.testing import ApacheKafka
from aioproducer.testing.apache.listeners import CLIENT, Listener, declared, protocol_map
from tests.support.apache_clusters import LEAN, running
from tests.support.raw_client import RawClient
from tests.support.read_back import read_back


def apache(test):
    """Mark a test that starts its own real Kafka."""
    return pytest.mark.apache(pytest.mark.slow(test))


MODULES = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def proxy_socket() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture(scope="module")
def kafka(request, proxy_socket) -> Iterator[ApacheKafka]:
    secure = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "plain.sasl.jaas.config": f'{MODULES}.plain.PlainLoginModule required user_alice="plain secret";',
        "scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
    }
    features = ("--feature", "transaction.version=1")
    users = ("--add-scram", "SCRAM-SHA-256=[name=bob,password=scram-secret]")
    kafka = ApacheKafka(
        listeners={"SECURE": secure},
        format_args=(*features, *users),
        advertised={0: proxy_socket.getsockname()},
        jvm_args=LEAN,
    )
    with running(kafka, request=request):
        yield kafka


@pytest.mark.promise(
    "Test clusters", "`ApacheKafka` has listeners, proxies, features, users and Kafka's own tools"
)
@apache
async def test_clients_connect_to_the_advertised_address(kafka, proxy_socket):
    await kafka.create_topic("through-a-proxy")

    async with proxy(proxy_socket, kafka.nodes[0].port) as passed:
        assert kafka.bootstrap_servers == f"127.0.0.1:{proxy_socket.getsockname()[1]}"
        # The broker itself also returns the address of the proxy.
        own = f"127.0.0.1:{kafka.nodes[0].port}"
        async with aioproducer.Producer(own) as producer:
            await producer.send_and_wait("through-a-proxy", b"v")
    log = await read_back(kafka.bootstrap_servers_of("INTERNAL"), "through-a-proxy")

    assert passed
    assert [record.value for record in log[0]] == [b"v"]


@apache
async def test_each_of_several_brokers_is_reached_at_its_advertised_address():
    with socket.create_server(("127.0.0.1", 0)) as proxy_socket:
        told = {1: ("localhost", 0), 2: proxy_socket.getsockname()}
        async with ApacheKafka(3, advertised=told, jvm_args=LEAN) as kafka:
            ports = [node.port for node in kafka.nodes]
            expected = {0: ("127.0.0.1", ports[0]), 1: ("localhost", ports[1]), 2: told[2]}
            await kafka.create_topic("t", partitions=3)
            leaders = {await kafka.leader("t", partition) for partition in range(3)}
            for port in ports:
                async with RawClient(f"127.0.0.1:{port}") as client:
                    brokers = (await client.metadata()).brokers
                assert {broker.node_id: (broker.host, broker.port) for broker in brokers} == expected

            async with proxy(proxy_socket, ports[2]) as passed:
                async with aioproducer.Producer(f"127.0.0.1:{ports[0]}") as producer:
                    for partition in range(3):
                        await producer.send_and_wait("t", b"%d" % partition, partition=partition)
            log = await read_back(kafka.bootstrap_servers_of("INTERNAL"), "t")

    assert kafka.bootstrap_servers == ",".join(f"{host}:{port}" for host, port in expected.values())
    assert leaders == {0, 1, 2}
    assert passed
    assert [[record.value for record in log[partition]] for partition in range(3)] == [[b"0"], [b"1"], [b"2"]]


@asynccontextmanager
async def proxy(listening: socket.socket, port: int) -> AsyncIterator[list[object]]:
    """Forward connections from a socket to a port during the block; yield the list of clients."""
    passed: list[object] = []

    async def pass_on(reader, writer):
        passed.append(writer.get_extra_info("peername"))
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async with await asyncio.start_server(pass_on, sock=listening.dup()):
        yield passed


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except OSError:
        pass
    writer.close()


@pytest.mark.promise(
    "Test clusters", "`ApacheKafka` has listeners, proxies, features, users and Kafka's own tools"
)
@apache
@pytest.mark.parametrize(
    ("mechanism", "user", "password"),
    [("PLAIN", "alice", "plain secret"), ("SCRAM-SHA-256", "bob", "scram-secret")],
)
async def test_another_listener_requires_a_password(kafka, mechanism, user, password):
    topic = f"by-{user}"
    await kafka.create_topic(topic)
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers_of("SECURE"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "log_level": 0,
    }

    refused = await asyncio.to_thread(first_error, {**settings, "sasl.password": "wrong"})
    await asyncio.to_thread(produce, {**settings, "sasl.password": password}, topic, b"v")
    log = await read_back(kafka.bootstrap_servers_of("INTERNAL"), topic)

    assert refused == KafkaError._AUTHENTICATION
    assert [record.value for record in log[0]] == [b"v"]


def first_error(settings: dict[str, object]) -> int:
    errors: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": errors.append})
    for _ in range(600):
        producer.poll(0.1)
        if errors:
            return errors[0].code()
    raise AssertionError("no error within 60 s")


def produce(settings: dict[str, object], topic: str, value: bytes) -> None:
    delivered: list[object] = []
    producer = Producer(settings)
    producer.produce(topic, value, on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(60) == 0
    assert delivered == [None]


@pytest.mark.promise(
    "Test clusters", "`ApacheKafka` has listeners, proxies, features, users and Kafka's own tools"
)
@apache
async def test_features_are_those_given_to_the_format_tool(kafka, apache_kafka):
    assert await finalized(kafka, "transaction.version") == 1
    assert await finalized(apache_kafka, "transaction.version") == 2


async def finalized(kafka: ApacheKafka, feature: str) -> int:
    async with RawClient(kafka.bootstrap_servers_of("INTERNAL")) as client:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        answer = await client.ask(request, 3)
    return next(found.max_version_level for found in answer.finalized_features if found.name == feature)


# Declarations


def test_without_a_declaration_there_is_one_plaintext_listener():
    assert declared({}) == (Listener("CLIENT"),)
    assert protocol_map(declared({})) == "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"


def test_the_client_listener_can_be_redeclared_and_comes_before_the_others():
    found = declared({"SECURE": {"security.protocol": "SASL_SSL"}, CLIENT: {"security.protocol": "SSL"}})

    assert [(listener.name, listener.protocol) for listener in found] == [
        ("CLIENT", "SSL"),
        ("SECURE", "SASL_SSL"),
    ]


def test_a_listeners_settings_have_its_name_in_lower_case_and_do_not_include_the_protocol():
    (_, listener) = declared(
        {"TWO_WAY": {"security.protocol": "SSL", "ssl.client.auth": "required", "max.connections": 5}}
    )

    assert listener.broker_settings() == {
        "listener.name.two_way.ssl.client.auth": "required",
        "listener.name.two_way.max.connections": 5,
    }


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("secure", {"security.protocol": "SSL"}, "upper case, .* not 'secure'"),
        ("9TH", {"security.protocol": "SSL"}, "upper case, .* not '9TH'"),
        ("CONTROLLER", {"security.protocol": "SSL"}, "CONTROLLER is reserved for the brokers"),
        (
            "SECURE",
            {"security.protocol": "ssl"},
            "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, not 'ssl'",
        ),
    ],
)
def test_an_invalid_declaration_is_an_error_that_names_the_mistake(name, settings, problem):
    with pytest.raises(ValueError, match=problem):
        declared({name: settings})
