"""Opening a connection: the parts that each attempt may change, and the time limit."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.errors import BrokerConnectionError
from aioproducer.metrics import Metrics
from aioproducer.network.connection import Attempt, Connection
from aioproducer.network.connection_state import ConnectionState
from aioproducer.security.login import Login
from aioproducer.types import Node
from tests.conftest import MS
from tests.support.scripted_broker import (
    HOST,
    LONG,
    Peer,
    ScriptedBroker,
    make_config,
    make_connection,
    silence,
)


async def test_an_attempt_may_name_another_address_and_another_first_version():
    asked = []

    async def answer(peer: Peer) -> None:
        header, _ = await peer.request()
        asked.append(header.version)
        await silence(peer)

    async with ScriptedBroker(answer) as broker:
        connection = Connection(
            Node(1, "elsewhere.example", 1),
            make_config(),
            Attempt(address=(HOST, broker.port), first_asked=3, setup_timeout=300 * MS),
            on_change=lambda connection: None,
            metrics=Metrics(),
        )
        with pytest.raises(BrokerConnectionError, match=r"elsewhere\.example:1.* no answer to API_VERSIONS"):
            await asyncio.wait_for(connection.connect(), LONG)

    assert asked == [3]
    assert connection.state is ConnectionState.CLOSED


@pytest.mark.promise(
    "Rules of Kafka's producer", "a connection's states are a table, each step is bounded by the set-up time"
)
async def test_reading_certificates_is_limited_by_the_set_up_time():
    settings = {"security_protocol": "SSL", "socket_connection_setup_timeout_ms": 20}
    async with ScriptedBroker(silence) as broker:
        login = Login(make_config(**settings))
        login.tls_context = asyncio.Event().wait
        connection = make_connection(broker.port, login=login, **settings)
        with pytest.raises(BrokerConnectionError, match="certificates were not read within"):
            await asyncio.wait_for(connection.connect(), LONG)

        assert broker.connections == 0
        assert connection.is_gone


@pytest.mark.parametrize(
    ("node", "bootstrap", "is_named"),
    [
        (Node(7, "kafka.invalid", 29092), "127.0.0.1:1", True),
        (Node(7, "kafka.invalid", 29092), "kafka.invalid:29092", False),
        (Node(-1, "kafka.invalid", 29092), "127.0.0.1:1", False),
        (Node(7, "127.0.0.1", 1), "192.0.2.1:1", True),
        (Node(7, "localhost", 1), "192.0.2.1:1", True),
        (Node(7, "127.0.0.1", 1), "localhost:2", False),
    ],
)
async def test_an_advertised_address_that_cannot_work_here_is_named_as_such(node, bootstrap, is_named):
    connection = Connection(
        node, make_config(bootstrap), on_change=lambda connection: None, metrics=Metrics()
    )

    with pytest.raises(BrokerConnectionError) as raised:
        await asyncio.wait_for(connection.connect(), LONG)

    hint = f"the cluster advertises this address to its clients: see advertised.listeners of broker {node.node_id}"
    assert (hint in str(raised.value)) == is_named
    assert not raised.value.written
