"""The setup of one real broker: its ports, listeners and settings."""

from __future__ import annotations

import socket

import pytest

from aioproducer.testing.apache.broker_setup import (
    ApacheBroker,
    PortReservation,
    controller_count,
    what_went_wrong,
)
from aioproducer.testing.apache.kafka import ApacheKafka
from aioproducer.testing.apache.listeners import declared


@pytest.mark.parametrize(("brokers", "controllers"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (9, 5)])
def test_controllers_are_an_odd_number(brokers, controllers):
    assert controller_count(brokers) == controllers


def test_only_its_broker_can_bind_a_reserved_port():
    ports = PortReservation()
    port = ports.reserve()
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with socket.socket() as broker:
            broker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            broker.bind(("127.0.0.1", port))
            broker.listen()
            socket.create_connection(("127.0.0.1", port)).close()
            with pytest.raises(OSError, match=f"port {port} on 127.0.0.1 is not available"):
                PortReservation().reserve(port)
    finally:
        ports.release()


def test_settings_of_the_user_take_precedence_and_are_escaped(tmp_path):
    config = {"num.io.threads": 7, "auto.create.topics.enable": False, "pem": "a\\b\nc", "name": " Ünï🛫"}

    lines = properties(tmp_path, config=config)

    assert "num.io.threads=7" in lines
    assert "auto.create.topics.enable=false" in lines
    assert r"pem=a\\b\nc" in lines
    assert r"name=\ \u00dcn\u00ef\ud83d\udeeb" in lines
    assert len(lines) == len({line.partition("=")[0] for line in lines})


def test_clients_get_the_advertised_address(tmp_path):
    lines = properties(tmp_path, advertised={"CLIENT": ("proxy", 9)})

    assert "listeners=CLIENT://127.0.0.1:1,INTERNAL://127.0.0.1:2,CONTROLLER://127.0.0.1:3" in lines
    assert "advertised.listeners=CLIENT://proxy:9,INTERNAL://127.0.0.1:2" in lines


def test_each_listener_has_its_own_protocol_and_settings(tmp_path):
    listeners = {
        "CLIENT": {"security.protocol": "SSL", "ssl.client.auth": "required"},
        "PASS_WORD": {"security.protocol": "SASL_PLAINTEXT", "sasl.enabled.mechanisms": "PLAIN"},
    }

    lines = properties(tmp_path, listeners=listeners, ports={"PASS_WORD": 4})

    assert (
        "listener.security.protocol.map=CLIENT:SSL,PASS_WORD:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
        in lines
    )
    assert "listener.name.client.ssl.client.auth=required" in lines
    assert "listener.name.pass_word.sasl.enabled.mechanisms=PLAIN" in lines
    assert not any("client.security.protocol" in line for line in lines)
    assert (
        "listeners=CLIENT://127.0.0.1:1,PASS_WORD://127.0.0.1:4,INTERNAL://127.0.0.1:2,CONTROLLER://127.0.0.1:3"
        in lines
    )


def properties(directory, *, listeners=None, config=None, ports=None, advertised=None):
    """Return the lines of server.properties in a cluster of one broker."""
    ports = {"CLIENT": 1, "INTERNAL": 2, "CONTROLLER": 3, **(ports or {})}
    broker = ApacheBroker(0, directory, ports, advertised or {})
    broker.write_files([broker], 1, declared(listeners or {}), config or {})
    return broker.properties.read_text().splitlines()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ports": [1, 2]}, "the number of ports must be 3, one for each broker, not 2"),
        (
            {"advertised": {0: ("a", 1), 3: ("b", 1)}},
            r"advertised= contains unknown brokers \[3\]; the broker ids are 0 to 2",
        ),
        ({"brokers": 0}, "brokers must be at least 1, not 0"),
        ({"version": "../4"}, r"version must be a release of Kafka such as '4\.3\.1', not '\.\./4'"),
        ({"listeners": {"INTERNAL": {}}}, "listener INTERNAL is reserved for the brokers"),
        ({"listeners": {"secure": {}}}, "a listener's name must be upper case, .*, not 'secure'"),
        (
            {"listeners": {"S": {}}},
            r"listener S requires 'security\.protocol', one of PLAINTEXT, SSL, .* not None",
        ),
        (
            {"listeners": {"S": {"security.protocol": "TLS"}}},
            r"listener S requires 'security\.protocol', one of PLAINTEXT, SSL, .* not 'TLS'",
        ),
    ],
)
def test_invalid_arguments_are_rejected_by_name(settings, told):
    with pytest.raises(ValueError, match=told):
        ApacheKafka(**{"brokers": 3, **settings})


async def test_before_the_start_there_is_no_address_and_nothing_to_stop():
    kafka = ApacheKafka()

    with pytest.raises(RuntimeError, match="this ApacheKafka was never started"):
        _ = kafka.directory
    with pytest.raises(RuntimeError, match="this ApacheKafka was never started"):
        _ = kafka.bootstrap_servers
    await kafka.stop()


# Excerpts of logs


def test_the_first_errors_and_the_end_of_a_log_are_shown(tmp_path):
    log = tmp_path / "server.log"
    lines = [f"12:00:00.000 [main] INFO kafka.Part - line {number}" for number in range(1000)]
    lines[500:502] = ["12:00:00.000 [main] ERROR kafka.BrokerServer - fatal", "Caused by: a reason"]
    log.write_text("\n".join(lines))

    told = what_went_wrong(log).splitlines()

    assert told == ["...", *lines[500:506], "...", *lines[995:]]
    assert "ERROR" not in what_went_wrong(log, since=log.stat().st_size - 2000)


def test_the_end_of_a_log_without_errors_is_shown(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("Error occurred during initialization of VM\nToo small maximum heap\n")

    assert what_went_wrong(log) == "Error occurred during initialization of VM\nToo small maximum heap"
    assert "No such file" in what_went_wrong(tmp_path / "none")
