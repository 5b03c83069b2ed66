"""`aioproducer check` as a process: a connection that works, and each step that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from aioproducer.cli.check import check
from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ApiVersionsResponse, InitProducerIdResponse, MetadataResponse
from aioproducer.protocol.schema import Message
from aioproducer.testing import EmbeddedCluster, Security
from tests.support.certificates import authority_pem, server_context, write
from tests.support.commands import Ended, on_terminal, run, running
from tests.support.producing import INIT_PRODUCER_ID
from tests.support.scripted_broker import Peer, ScriptedBroker, api_versions, metadata_response

QUICK = ("-X", "socket.connection.setup.timeout.ms=500", "-X", "request.timeout.ms=500")


async def checked(servers: str, *arguments: str, env: dict[str, str] | None = None) -> Ended:
    return await run("check", "-b", servers, *arguments, env=env)


def failed(ended: Ended) -> dict[str, Any]:
    """The only step that has failed."""
    assert ended.code == 1
    [step] = [step for step in ended.json["steps"] if step["status"] == "failed"]
    return step


@pytest.mark.promise(
    "Command line", "`check` walks from the settings to an acknowledged record, and dials each broker"
)
async def test_every_step_passes_up_to_an_acknowledged_record():
    async with EmbeddedCluster(2, topics={"t": 3}) as cluster:
        ended = await checked(cluster.bootstrap_servers, "--topic", "t", "--write")
        written = cluster.records("t")

    assert ended.code == 0
    assert ended.err == ""
    first, second = cluster.bootstrap_servers.split(",")
    for line in (
        f"{first}\n  ✓ DNS            127.0.0.1\n  ✓ TCP            connected in ",
        f"{second}\n  ✓ DNS",
        f"  ✓ metadata       cluster {cluster.cluster_id}, 2 brokers\n",
        f"broker 0, advertised as {first}\n",
        f"broker 1, advertised as {second}\n",
        "topic t\n  ✓ leaders        3 partitions, each with a leader\n",
        "  ✓ InitProducerId producer id ",
        "  ✓ record         acknowledged in ",
    ):
        assert line in ended.out
    assert ended.out.endswith("✓ all steps passed\n")
    assert [record.value for record in written] == [b"aioproducer check"]
    assert check.__doc__ is not None


@pytest.mark.promise(
    "Command line",
    "`check` names advertised.listeners if a broker cannot be reached at its advertised address",
)
async def test_an_advertised_address_that_cannot_be_resolved_or_reached_is_named():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        servers = cluster.bootstrap_servers
        cluster.broker(0).host = "kafka.invalid"
        step = failed(await checked(servers, "--json"))
        cluster.broker(0).host = "127.0.0.2"  # Linux accepts this address, but nothing listens there
        refused = await checked(servers, "--json")
        cluster.broker(0).host = "127.0.0.1"

    port = servers.partition(":")[2]
    assert step["place"] == f"broker 0, advertised as kafka.invalid:{port}"
    assert step["name"] == "DNS"
    assert step["text"].startswith("this machine cannot resolve kafka.invalid: ")
    assert (
        f"the cluster advertises kafka.invalid:{port} to its clients; correct advertised.listeners"
        in step["advice"]
    )
    assert failed(refused)["name"] == "TCP"
    assert "correct advertised.listeners of broker 0" in failed(refused)["advice"]


@pytest.mark.parametrize(
    ("server", "name", "text"),
    [
        ("kafka.invalid:9092", "DNS", "cannot resolve kafka.invalid"),
        ("127.0.0.1:1", "TCP", "Connection refused"),
    ],
)
async def test_a_bootstrap_address_that_cannot_be_reached_fails_at_its_step(server, name, text):
    step = failed(await checked(server, "--json"))

    assert (step["place"], step["name"]) == (server, name)
    assert text in step["text"]
    assert step["advice"]


async def test_a_silent_port_fails_at_apiversions():
    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        step = failed(await checked(f"127.0.0.1:{port}", "--json", *QUICK))

    assert step["name"] == "ApiVersions"
    assert "is this a Kafka broker's port" in step["text"]


async def test_a_topic_that_does_not_exist_is_not_created(cluster):
    step = failed(await checked(cluster.bootstrap_servers, "--json", "--topic", "other", "--write"))

    assert (step["place"], step["text"]) == ("topic other", "UNKNOWN_TOPIC_OR_PARTITION")
    assert "other" not in cluster.topics


async def test_a_partition_without_a_leader_fails_and_missing_replicas_need_attention():
    async with EmbeddedCluster(3, topics={"t": 1}) as cluster:
        cluster.set_isr("t", 0, [cluster.leader("t", 0)])
        ended = await checked(cluster.bootstrap_servers, "--json", "--topic", "t")

    assert ended.code == 0
    [step] = [step for step in ended.json["steps"] if step["name"] == "in-sync"]
    assert (step["status"], step["text"]) == ("look", "not all replicas of partition 0 are in sync")


@pytest.mark.parametrize(
    ("kind", "trusts", "problem"),
    [
        ("right", True, ""),
        ("right", False, "ssl_truststore_location"),
        ("expired", True, "the broker needs a new certificate"),
        ("wrong host", True, "the name that the client connects to must be in the certificate"),
    ],
)
async def test_the_certificate_or_the_reason_for_its_rejection_is_shown(tmp_path, kind, trusts, problem):
    trust = write(tmp_path / "ca.pem", authority_pem())
    async with EmbeddedCluster(security=Security(tls=server_context(kind))) as cluster:
        settings = ["-X", "security.protocol=SSL", *(["-X", f"ssl.ca.location={trust}"] if trusts else [])]
        ended = await checked(cluster.bootstrap_servers, "--json", *settings)

    steps = {step["name"]: step for step in ended.json["steps"]}
    assert steps["TLS"]["status"] == ("failed" if problem else "passed")
    if problem:
        assert problem in steps["TLS"]["text"]
        assert ended.code == 1
    else:
        assert steps["TLS"]["text"].startswith("TLSv1.3, ")
        assert "certificate for 127.0.0.1, localhost by tests" in steps["TLS"]["text"]
        assert "days left" in steps["TLS"]["text"]
        assert ended.code == 0


@pytest.mark.parametrize(("password", "code"), [("right", 0), ("hunter2", 1)])
async def test_sasl_is_a_step_and_the_password_is_not_shown(tmp_path, password, code):
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=ann\n"
        f"sasl.password={password}\n"
    )
    async with EmbeddedCluster(
        security=Security(mechanisms=["SCRAM-SHA-256"], users={"ann": "right"})
    ) as cluster:
        ended = await checked(cluster.bootstrap_servers, "-F", str(file))

    assert ended.code == code
    assert ("✓ SASL           SCRAM-SHA-256 as ann" if code == 0 else "✗ SASL") in ended.out
    assert f"sasl_plain_username = ann ({file}:3 as sasl.username)" in ended.out
    assert password not in ended.out.replace("rights", "") + ended.err


async def test_a_coordinator_that_is_still_loading_is_asked_again(cluster):
    asked = cluster.faults.add(INIT_PRODUCER_ID, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, count=2)

    ended = await checked(cluster.bootstrap_servers)

    assert ended.code == 0, ended
    assert asked.hits == 2
    assert "✓ InitProducerId" in ended.out


async def test_a_coordinator_that_never_loads_is_a_failed_step(cluster):
    cluster.faults.add(INIT_PRODUCER_ID, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, count=10**6)

    ended = await checked(cluster.bootstrap_servers, *QUICK)

    assert ended.code == 1
    assert "✗ InitProducerId COORDINATOR_LOAD_IN_PROGRESS" in ended.out


async def test_wrong_settings_end_with_2(cluster):
    wrong = await checked(cluster.bootstrap_servers, "-X", "acks=7")
    incomplete = await checked(cluster.bootstrap_servers, "--write")

    assert (wrong.code, incomplete.code) == (2, 2)
    assert "--write requires --topic" in incomplete.err


async def test_ctrl_c_ends_with_130_and_the_steps_so_far():
    asked = asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):
            asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        async with running("check", "-b", f"127.0.0.1:{port}") as command:
            await asyncio.wait_for(asked.wait(), 30)
            command.interrupt()
            ended = await command.ended()

    assert ended.code == 130
    assert "  ✓ TCP" in ended.out


async def test_a_terminal_shows_the_steps_in_their_order(cluster):
    async with on_terminal("check", "-b", cluster.bootstrap_servers, "--topic", "t") as terminal:
        code = await terminal.ended()

    assert code == 0
    assert (
        terminal.shown.index("✓ DNS") < terminal.shown.index("✓ metadata") < terminal.shown.index("topic t")
    )
    assert "✓ all steps passed" in terminal.shown


# A broker that lies

Broker = MetadataResponse.MetadataResponseBroker
Topic = MetadataResponse.MetadataResponseTopic
CONTROLS = "\x1b[31m\n  \u2713 record         acknowledged\u202e\u2028"
"""A colour, a forged step on a line of its own, and a change of the writing direction."""


def liar(
    *, topics: Sequence[str] = (), feature: str = "f", cluster_id: str = "c", brokers: Sequence[Broker] = ()
) -> ScriptedBroker:
    """A broker that answers with these texts, addresses and topics. Without `brokers`, it names itself."""

    async def serve(peer: Peer) -> None:
        while True:
            header, _ = await peer.request()
            answer: Message = InitProducerIdResponse(producer_id=1)
            if header.api_key == ApiKey.API_VERSIONS:
                answer = api_versions()
                answer.finalized_features = [ApiVersionsResponse.FinalizedFeatureKey(name=feature)]
            elif header.api_key == ApiKey.METADATA:
                answer = metadata_response(broker.port)
                answer.brokers = list(brokers) or answer.brokers
                answer.cluster_id = cluster_id
                answer.topics = [Topic(name=name) for name in topics]
            peer.answer(header, answer)

    broker = ScriptedBroker(serve)
    return broker


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_brokers_texts_cannot_colour_the_output_or_forge_a_step(as_json):
    strange = Broker(node_id=7, host="h" + CONTROLS, port=9092)
    async with liar(feature="f" + CONTROLS, cluster_id="c" + CONTROLS, brokers=[strange]) as broker:
        ended = await checked(broker.address, *(["--json"] if as_json else []))

    assert ended.code == 1
    assert ended.err == ""
    for text in ("f", "cluster c", "advertised as h"):
        escape = "\\\\" if as_json else "\\"
        assert text + f"{escape}x1b[31m{escape}x0a  \u2713 record" in ended.out
    assert not [sign for sign in ended.out if not (sign.isprintable() or sign == "\n")]
    assert "\n  \u2713 record" not in ended.out


@pytest.mark.parametrize(
    ("host", "port", "name", "text"),
    [
        ("127.0.0.1", 70_000, "address", "address is invalid, so producers ignore this broker"),
        ("127.0.0.1", 0, "address", "address is invalid, so producers ignore this broker"),
        ("a b", 9092, "address", "address is invalid, so producers ignore this broker"),
        ("a" * 64 + ".example", 9092, "DNS", "this machine cannot resolve aaaa"),
        ("169.254.169.254", 9092, "TCP", "is a link-local address; to allow it, set resolved_address_filter"),
    ],
)
async def test_an_advertised_address_that_a_producer_rejects_is_a_failed_step(host, port, name, text):
    async with liar(brokers=[Broker(node_id=7, host=host, port=port)]) as broker:
        step = failed(await checked(broker.address, "--json", *QUICK))

    assert step["place"] == f"broker 7, advertised as {host}:{port}"
    assert step["name"] == name
    assert text in step["text"]
    assert "correct advertised.listeners of broker 7" in step["advice"]


@pytest.mark.parametrize(
    ("topics", "text"),
    [
        ([], "the broker answered for 0 topics instead of 1"),
        (["t", "t"], "the broker answered for 2 topics instead of 1"),
        (["other"], "the broker answered for topic other instead"),
    ],
)
async def test_an_answer_for_other_topics_is_a_failed_step(topics, text):
    async with liar(topics=topics) as broker:
        step = failed(await checked(broker.address, "--json", "--topic", "t"))

    assert (step["place"], step["name"], step["text"]) == ("topic t", "topic", text)
    assert "check that this is a Kafka broker" in step["advice"]
