"""The sources of a producer's settings, and the origins that it remembers."""

from __future__ import annotations

import pytest

from aioproducer import ConfigError, Producer
from aioproducer.from_config import FromConfig


def test_each_source_of_settings_builds_the_same_producer(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text("linger.ms=7\n")
    producers = [
        Producer(linger_ms=7),
        Producer.from_config({"linger.ms": "7"}),
        Producer.from_env(environ={"AIOPRODUCER_LINGER_MS": "7"}),
        Producer.from_properties(path),
    ]

    assert [producer.config.linger for producer in producers] == [0.007] * 4
    assert all(isinstance(producer, FromConfig) for producer in producers)


def test_keywords_win_over_each_source(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text("linger.ms=7\n")

    assert Producer.from_properties(path, linger_ms=9).config.linger == 0.009
    assert Producer.from_config({"linger_ms": 7}, linger_ms=9).config.linger == 0.009


def test_a_subclass_that_needs_an_invalid_setting_gets_its_error():
    class Needs(Producer):
        def __init__(self, bootstrap_servers: str, **settings: object) -> None:
            super().__init__(bootstrap_servers, **settings)

    with pytest.raises(
        ConfigError, match=r"there is no setting bootstrap\.server; did you mean bootstrap\.servers"
    ):
        Needs.from_config({"bootstrap.server": "a:1"})
    with pytest.raises(TypeError, match="bootstrap_servers"):
        Needs.from_config({"linger.ms": "7"})


def test_an_unknown_keyword_is_a_config_error_with_advice():
    with pytest.raises(ConfigError, match="did you mean linger_ms"):
        Producer(linger_mss=5)


def test_a_subclass_with_its_own_init_gets_the_settings_of_a_source():
    class Named(Producer):
        def __init__(self, *arguments: object, **settings: object) -> None:
            super().__init__(*arguments, **settings)
            self.name = "mine"

    found = Named.from_config({"linger.ms": "7"})

    assert found.name == "mine"
    assert found.config.linger == 0.007
