"""The probes of a single address; test_check.py runs them against brokers."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aioproducer import ProducerConfig
from aioproducer.cli.checklist import Checklist, Status
from aioproducer.cli.probes import Prober, described
from aioproducer.cli.screen import Screen
from aioproducer.testing import EmbeddedCluster, Security
from aioproducer.types import Node
from tests.support.certificates import authority_pem, server_context
from tests.support.scripted_broker import HOST, Peer, ScriptedBroker, make_config, silence


def test_a_certificate_is_described_by_names_issuer_and_end():
    certificate = {
        "subjectAltName": (("DNS", "a"), ("IP Address", "::1")),
        "issuer": ((("organizationName", "o"),), (("commonName", "ca"),)),
        "notAfter": "Jan  1 00:00:00 2030 GMT",
    }

    assert described(certificate) == "for a, ::1 by o, ca, until Jan  1 00:00:00 2030 GMT"


async def test_if_all_steps_pass_there_is_a_connection(cluster):
    checklist = Checklist(Screen(as_json=True))
    host, _, port = cluster.bootstrap_servers.partition(":")

    connection = await Prober(ProducerConfig.of(), checklist).connect(Node(-1, host, int(port)))

    assert connection is not None
    await connection.close()
    assert [(step.name, step.status) for step in checklist.steps] == [
        ("DNS", Status.PASSED),
        ("TCP", Status.PASSED),
        ("ApiVersions", Status.PASSED),
    ]


# Address filters and connectors


async def steps_of(node: Node, **settings: object) -> list[tuple[str, Status, str]]:
    """Probe the node, close the connection, and return the steps."""
    checklist = Checklist(Screen(as_json=True))
    connection = await Prober(make_config(**settings), checklist).connect(node)
    if connection is not None:
        await connection.close()
    return [(step.name, step.status, step.text) for step in checklist.steps]


async def answer_versions(peer: Peer) -> None:
    await peer.handshake()
    await silence(peer)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
async def test_the_resolved_address_filter_applies_before_a_socket_is_opened(protocol):
    settings = {"security_protocol": protocol, "resolved_address_filter": lambda *_: False}
    async with ScriptedBroker(answer_versions) as broker:
        *_, (name, status, text) = await steps_of(Node(7, HOST, broker.port), **settings)

        assert broker.connections == 0
    assert (name, status) == ("TCP", Status.FAILED)
    assert f"resolved_address_filter rejected {HOST}" in text


async def test_a_link_local_address_is_not_connected_to():
    *_, (name, status, text) = await steps_of(Node(7, "169.254.169.254", 80))

    assert (name, status) == ("TCP", Status.FAILED)
    assert "169.254.169.254 is a link-local address; to allow it, set resolved_address_filter" in text


async def test_the_address_filter_may_map_an_advertised_address_or_reject_it():
    async with ScriptedBroker(answer_versions) as broker:
        advertised = Node(7, "broker.invalid", 9092)
        mapped = await steps_of(advertised, address_filter=lambda host, port, node_id: (HOST, broker.port))
        assert {status for _, status, _ in mapped} == {Status.PASSED}
        before = broker.connections

        [(name, status, text)] = await steps_of(advertised, address_filter=lambda *_: None)

        assert broker.connections == before
    assert (name, status) == ("address", Status.FAILED)
    assert "address_filter rejected this address" in text


async def test_a_connector_opens_every_socket_and_the_name_is_not_resolved_here():
    asked: list[tuple[str, int]] = []

    async with ScriptedBroker(answer_versions) as broker:

        async def connector(host: str, port: int) -> socket.socket:
            asked.append((host, port))
            sock = socket.socket()
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, (HOST, broker.port))
            return sock

        steps = await steps_of(Node(7, "broker.invalid", 9092), connector=connector)

        assert broker.connections == len(asked) == 2
    assert [name for name, *_ in steps] == ["TCP", "ApiVersions"]
    assert {status for _, status, _ in steps} == {Status.PASSED}
    assert set(asked) == {("broker.invalid", 9092)}


async def test_the_tls_handshake_uses_a_mapped_address_and_checks_the_advertised_name():
    async with EmbeddedCluster(security=Security(tls=server_context())) as cluster:
        _, _, port = cluster.bootstrap_servers.partition(":")
        settings = {
            "security_protocol": "SSL",
            "ssl_truststore_certificates": authority_pem(),
            "address_filter": lambda host, _, node_id: (HOST, int(port)),
        }
        right = await steps_of(Node(7, "localhost", 9092), **settings)
        wrong = await steps_of(Node(7, "broker.invalid", 9092), **settings)

    assert [name for name, *_ in right] == ["DNS", "TCP", "TLS", "ApiVersions"]
    assert {status for _, status, _ in right} == {Status.PASSED}
    assert wrong[-1][:2] == ("TLS", Status.FAILED)
    assert "the name that the client connects to must be in the certificate" in wrong[-1][2]


async def test_a_name_that_cannot_be_looked_up_is_a_failed_step():
    [(name, status, text)] = await steps_of(Node(7, "a" * 64 + ".example", 9092))

    assert (name, status) == ("DNS", Status.FAILED)
    assert "label" in text
