"""`aioproducer check`: finds the step that fails on the way from the settings to an acknowledged record."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated

import typer

from aioproducer import Producer, ProducerConfig
from aioproducer.cli import options
from aioproducer.cli.checklist import Checklist
from aioproducer.cli.cluster_state import (
    advice_on,
    ask_metadata,
    check_producer_id,
    check_topic,
    write_one,
)
from aioproducer.cli.exits import ExitCode, UsageError
from aioproducer.cli.probes import Prober
from aioproducer.cli.running import execute
from aioproducer.cli.screen import Screen
from aioproducer.cli.settings import Given, new_producer
from aioproducer.cli.stop import Stop
from aioproducer.cluster import node_of
from aioproducer.network.connection import Connection
from aioproducer.protocol.messages import MetadataResponse
from aioproducer.types import Node


def check(
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", metavar="TOPIC", help="Also check this topic.", show_default=False),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Also send one record to the topic.")] = False,
    servers: options.Servers = None,
    config: options.SettingsFile = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = 0,
) -> None:
    """Check each step from the settings to an acknowledged record, and suggest what to do if one fails.

    The steps are: settings, DNS, TCP, TLS, ApiVersions, SASL and metadata for
    each bootstrap address, the same for the address that each broker
    advertises, then the topic's leaders, in-sync replicas and rights, a
    producer id, and with --write one record.
    """
    given = Given(servers, config, tuple(settings or ()))
    del settings  # a traceback that shows locals must not show passwords
    screen = Screen(as_json=as_json)
    screen.show_log(verbose, without_v=logging.CRITICAL)  # the steps already report these errors

    async def command(stop: Stop) -> ExitCode:
        if write and topic is None:
            raise UsageError("--write requires --topic")
        # The transactional id is left out; otherwise the check would fence the producer that uses it.
        producer = new_producer(given, screen, transactional_id=None)
        checklist = Checklist(screen)
        with screen.waiting("checking"):
            await stop.unless_stopped(_check_all(producer, checklist, topic, write=write))
        return checklist.finish()

    execute(screen, command)


async def _check_all(producer: Producer, checklist: Checklist, topic: str | None, *, write: bool) -> None:
    config = producer.config
    checklist.passed("settings", *_summary(config.shown()))
    prober = Prober(config, checklist)
    connections: list[Connection] = []
    try:
        answer = await _check_bootstrap(prober, config, checklist, topic, connections)
        if answer is None:
            return
        is_open = await _check_brokers(prober, config, checklist, answer, connections)
        may_write = True
        if topic is not None:
            checklist.place = f"topic {topic}"
            may_write = check_topic(answer, topic, checklist)
        checklist.place = "" if topic is None else checklist.place
        await check_producer_id(connections[0], config, checklist)
    finally:
        for connection in connections:
            await connection.close()
    if write and topic is not None and is_open and may_write:
        await write_one(producer, topic, checklist)


async def _check_bootstrap(
    prober: Prober,
    config: ProducerConfig,
    checklist: Checklist,
    topic: str | None,
    connections: list[Connection],
) -> MetadataResponse | None:
    """Check each bootstrap address. Return the first metadata response."""
    first = None
    for number, (host, port) in enumerate(config.bootstrap_servers, 1):
        checklist.place = f"{host}:{port}"
        connection = await prober.connect(Node(-number, host, port))
        if connection is not None:
            connections.append(connection)
            answer = await ask_metadata(connection, config, checklist, topic)
            first = first or answer
    return first


async def _check_brokers(
    prober: Prober,
    config: ProducerConfig,
    checklist: Checklist,
    answer: MetadataResponse,
    connections: list[Connection],
) -> bool:
    """Check the address that each broker advertises. Return whether all brokers can be reached."""
    bootstrap = ",".join(f"{host}:{port}" for host, port in config.bootstrap_servers)
    reached = True
    for broker in answer.brokers:
        checklist.place = f"broker {broker.node_id}, advertised as {broker.host}:{broker.port}"
        node = node_of(broker)
        if node is None:
            checklist.failed(
                "address",
                "the broker's id or address is invalid, so producers ignore this broker",
                advice_on(broker, bootstrap),
            )
            reached = False
            continue
        connection = await prober.connect(node, advice=advice_on(node, bootstrap))
        if connection is None:
            reached = False
        else:
            connections.append(connection)
    return reached


def _summary(shown: Mapping[str, str]) -> list[str]:
    """Return a line for each setting that differs from its default, with its origin and without secrets."""
    given = [f"{name} = {text}" for name, text in shown.items() if not text.endswith("(default)")]
    return given or ["all defaults"]
