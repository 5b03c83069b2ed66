"""The sources of a producer's settings: keywords, a mapping with any client's names, the environment, a file."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Self

from aioproducer.config import ProducerConfig
from aioproducer.settings.entries import (
    Entry,
    Sourced,
    check_keywords,
    entries_of_environment,
    entries_of_file,
    entries_of_mapping,
    resolve,
)

P = ParamSpec("P")


class FromConfig:
    """Base of `Producer`. `__init__` is decorated with `remembers_arguments` and calls `_configure()` first."""

    _given: dict[str, Any]
    _sourced = Sourced({}, {})
    """The origins of settings that are not keywords of the caller; set before `__init__` runs."""
    _config: ProducerConfig

    @property
    def config(self) -> ProducerConfig:
        """The effective settings. `print(producer.config)` shows each with its origin, secrets hidden."""
        return self._config

    @classmethod
    def from_config(cls, mapping: Mapping[str, Any], **overrides: Any) -> Self:
        """A producer from the configuration of this or another client.

            Producer.from_config({"metadata.broker.list": "a:9092", "queue.buffering.max.ms": "5"}, acks="all")

        Args:
            mapping: settings by `Producer`'s keywords, Java's names (`linger.ms`) or librdkafka's
                (`queue.buffering.max.ms`), also with underscores for dots. Text is parsed, in the unit of the name.
            overrides: keywords of `Producer`, which win over the mapping.

        Raises:
            ConfigError: a key is unknown (the text names the one that was meant) or can't be used (it says why and
                what to do instead), a value is malformed, or settings contradict each other. All mistakes are in one
                error.

        Keys that have no effect here, such as the sizes of socket buffers or a consumer's group.id, are listed in one
        warning in the log.
        """
        try:
            check_keywords(overrides)
            entries = entries_of_mapping(mapping)
        finally:
            del mapping  # a traceback that shows locals must not show its contents
        return cls._from(entries, overrides)

    @classmethod
    def from_env(
        cls, prefix: str = "AIOPRODUCER_", environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> Self:
        """A producer from environment variables such as AIOPRODUCER_BOOTSTRAP_SERVERS and AIOPRODUCER_LINGER_MS.

        Args:
            prefix: the prefix of the variables that are settings.
            environ: the variables; the process's own if None.
            overrides: keywords of `Producer`, which win over the variables.

        Raises:
            ConfigError: as `from_config`; the text names the variable.
        """
        try:
            check_keywords(overrides)
            entries = entries_of_environment(prefix, os.environ if environ is None else environ)
        finally:
            del environ
        return cls._from(entries, overrides)

    @classmethod
    def from_properties(cls, file: str | os.PathLike[str], **overrides: Any) -> Self:
        """A producer from a properties file, such as the `client.properties` of Java's clients.

        Args:
            file: its path. UTF-8 or Latin-1; keys as in `from_config`.
            overrides: keywords of `Producer`, which win over the file; also settings that a file can't contain, such
                as functions.

        Raises:
            ConfigError: as `from_config`, and for a file that can't be read; the text names file and line.
        """
        check_keywords(overrides)
        return cls._from(entries_of_file(file), overrides)

    @classmethod
    def _from(cls, entries: list[Entry], overrides: dict[str, Any]) -> Self:
        sourced = resolve(entries, overrides)
        producer = cls.__new__(cls)
        producer._sourced = sourced
        # A subclass may have an __init__ of its own; it passes on what it doesn't know.
        try:
            cls.__init__(producer, **sourced.settings)
        except TypeError:
            # It may need a setting that has a mistake.
            sourced.mistakes.raise_if_any()
            raise
        return producer

    def _configure(self) -> ProducerConfig:
        sourced = self._sourced
        return ProducerConfig.of(sourced.origins, sourced.notes, sourced.mistakes, **self._given)


def remembers_arguments(init: Callable[P, None]) -> Callable[P, None]:
    """Decorate `Producer.__init__` to keep the given arguments, without defaults, in `self._given`.

    An unknown keyword raises ConfigError, with the name of the most similar setting, instead of a TypeError.
    """
    names = list(inspect.signature(init).parameters)

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        check_keywords(kwargs)
        producer = args[0]
        assert isinstance(producer, FromConfig)
        producer._given = dict(zip(names[1:], args[1:], strict=False)) | kwargs
        init(*args, **kwargs)

    return checked
