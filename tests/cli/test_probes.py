"""The probes of a single address; test_check.py runs them against brokers."""

from __future__ import annotations

from aioproducer import ProducerConfig
from aioproducer.cli.checklist import Checklist, Status
from aioproducer.cli.probes import Prober, described
from aioproducer.cli.screen import Screen
from aioproducer.types import Node


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
