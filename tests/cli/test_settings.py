"""The settings of a command: precedence of the sources, and secrets in the arguments."""

from __future__ import annotations

import pytest

from aioproducer import ConfigError
from aioproducer.cli.bench import bench
from aioproducer.cli.check import check
from aioproducer.cli.config import config
from aioproducer.cli.exits import UsageError
from aioproducer.cli.info import info
from aioproducer.cli.produce import produce
from aioproducer.cli.screen import Screen
from aioproducer.cli.settings import Given, new_producer
from tests.support.tracebacks import assert_no_frame_shows


def test_arguments_override_the_file_and_the_file_overrides_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\nqueue.buffering.max.ms=1\nclient.id=file\n")
    monkeypatch.setenv("AIOPRODUCER_LINGER_MS", "7")
    monkeypatch.setenv("AIOPRODUCER_ACKS", "1")

    config = new_producer(Given("arguments:2", file, ("client.id=arguments",)), Screen()).config

    assert config.bootstrap_servers == (("arguments", 2),)
    assert (config.client_id, config.linger, config.acks) == ("arguments", 0.001, 1)
    assert config.origin("linger_ms") == f"{file}:2 as queue.buffering.max.ms"
    assert config.origin("acks") == "environment AIOPRODUCER_ACKS"


def test_settings_of_the_command_itself_override_all_others(monkeypatch):
    monkeypatch.setenv("AIOPRODUCER_TRANSACTIONAL_ID", "a")

    assert new_producer(Given(), Screen(), transactional_id="b").config.transactional_id == "b"


@pytest.mark.parametrize(
    "key", ["sasl.password", "sasl_plain_password", "ssl.key.password", "sasl.jaas.config"]
)
def test_a_secret_in_the_arguments_causes_a_warning_and_is_never_shown(capsys, key):
    with pytest.raises(ConfigError) as raised:
        new_producer(Given(settings=(f"{key}=hunter2", "acks=7")), Screen())

    assert f"warning: -X {key}: every user on this machine can see" in " ".join(
        capsys.readouterr().err.split()
    )
    assert "hunter2" not in str(raised.value) + repr(raised.value)


def test_a_setting_without_a_value_is_not_shown_because_it_may_be_a_secret():
    with pytest.raises(UsageError) as raised:
        new_producer(Given(settings=("hunter2",)), Screen())

    assert "hunter2" not in str(raised.value) + repr(Given(settings=("hunter2",)))


@pytest.mark.parametrize(
    "wrong", ["acks", "=x", "acks=7", "sasl.pasword=x", "linger.ms=-1", "sasl_oauth_token_provider=x"]
)
def test_no_frame_shows_a_password_in_the_arguments(wrong):
    password = "-".join(["canary", "password"])
    for settings in (
        (f"sasl.password={password}", wrong),
        (wrong, f"sasl.password={password}"),
        (f"sasl.jaas.config=Plain required password='{password}'", wrong),
        (password, wrong),
        (f"sasl_oauth_token_provider={password}", wrong),
    ):
        with pytest.raises((UsageError, ConfigError)) as raised:
            new_producer(Given(settings=settings), Screen())
        assert_no_frame_shows(raised.value, password)


def test_no_frame_shows_a_password_if_the_warning_cannot_be_written():
    class Closed(Screen):
        def warn(self, text: str) -> None:
            raise BrokenPipeError

    password = "-".join(["canary", "password"])
    with pytest.raises(BrokenPipeError) as raised:
        new_producer(Given(settings=(f"sasl.password={password}",)), Closed())

    assert_no_frame_shows(raised.value, password)


@pytest.mark.parametrize("command", [check, bench, config, info, produce])
def test_no_frame_of_a_command_shows_a_password(command, monkeypatch, tmp_path):
    """An error that no command expects ends the program with a traceback."""

    def fails(given: Given, *_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    password = "-".join(["canary", "password"])
    monkeypatch.setattr(f"{command.__module__}.new_producer", fails)
    place = {check: {}, bench: {"topic": "t"}, config: {"file": tmp_path / "x"}, info: {}}
    (tmp_path / "x").write_text("acks=1\n")
    settings = place.get(command, {"topic": "t", "files": [tmp_path / "x"]})

    with pytest.raises(RuntimeError, match="a bug") as raised:
        command(**settings, settings=[f"sasl.password={password}"])

    assert_no_frame_shows(raised.value, password)


def test_serializers_of_a_java_program_are_left_out(tmp_path):
    file = tmp_path / "producer.properties"
    file.write_text("value.serializer=org.apache.kafka.common.serialization.StringSerializer\n")

    assert new_producer(Given(file=file), Screen()).config.value_serializer is None
