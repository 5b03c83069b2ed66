"""The states of a connection."""

from __future__ import annotations

import itertools

import pytest

from aioproducer.network.connection_state import TRANSITIONS, ConnectionState
from tests.support.scripted_broker import make_connection


@pytest.mark.promise("Docs", "DESIGN shows the state tables")
@pytest.mark.promise(
    "Rules of Kafka's producer", "a connection's states are a table, each step is bounded by the set-up time"
)
async def test_every_change_of_state_is_in_the_table():
    connection = make_connection(1)

    for state, to in itertools.product(ConnectionState, ConnectionState):
        connection.state = state
        if to in TRANSITIONS[state]:
            connection._move(to)
            assert connection.state is to
        else:
            with pytest.raises(AssertionError):
                connection._move(to)
