"""Faults in an established TLS connection: a response is cut off, with and without a close_notify alert."""

from __future__ import annotations

import pytest

from aioproducer import Producer
from aioproducer.testing import EmbeddedCluster, Security
from tests.conftest import MS
from tests.support.certificates import authority_pem, server_context
from tests.support.producing import PRODUCE, QUICK, until, values, within


@pytest.mark.parametrize("says_goodbye", [True, False], ids=["close_notify", "truncated"])
async def test_a_response_that_is_cut_off_within_tls_is_ignored_and_its_record_is_stored_once(says_goodbye):
    """An attacker in the middle can end the TCP connection during a response, but can't send a valid close_notify."""
    settings = {**QUICK, "security_protocol": "SSL", "ssl_truststore_certificates": authority_pem()}
    async with EmbeddedCluster(security=Security(tls=server_context()), topics={"t": 1}) as cluster:
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            await producer.send_and_wait("t", b"0")
            if says_goodbye:
                cluster.faults.add(PRODUCE, truncate=20)
            else:
                cluster.faults.add(PRODUCE, trickle=20, trickle_pause=1_000_000 * MS)
            delivery = await producer.send("t", b"1")
            if not says_goodbye:
                await until(lambda: len(values(cluster)) == 2)
                await cluster.close_connections(0)

            assert (await within(2, delivery)).offset == 1
            lost = [node.disconnects for node in producer.metrics().nodes if node.node_id == 0]

        assert values(cluster) == [b"0", b"1"]
        assert lost == [1]
        assert len(cluster.requests_of(PRODUCE)) == 3
