"""The sources of a producer's settings: keywords, a mapping that uses any client's names, the environment, a file."""

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
    """A base class of `Producer`. The `__init__` of `Producer` is decorated with `remembers_arguments`, and begins by
    calling `_configure()`."""

    _given: dict[str, Any]
    _sourced = Sourced({}, {})
    """The settings that were read from a source, not passed by the caller; assigned before `__init__` runs."""
    _config: ProducerConfig

    @property
    def config(self) -> ProducerConfig:
        """The effective settings. `print(producer.config)` shows each setting with its origin, but hides secrets."""
        return self._config

    @classmethod
    def from_config(cls, mapping: Mapping[str, Any], **overrides: Any) -> Self:
        """Create a producer from a configuration for this or another client.

            Producer.from_config({"metadata.broker.list": "a:9092", "queue.buffering.max.ms": "5"}, acks="all")

        Args:
            mapping: the settings by name. A name is a keyword of `Producer`, or a name used by Java (`linger.ms`) or
                librdkafka (`queue.buffering.max.ms`), with dots or underscores. Text is converted to the type of the
                setting.
            overrides: keywords of `Producer`, which take precedence over the mapping.

        Raises:
            ConfigError: a key is unknown (the text suggests a known one) or can't be used (the text says why and what
                to do instead), a value is malformed, or settings contradict each other. One error lists all mistakes.

        Keys that do not affect this producer, such as socket buffer sizes or a consumer's group.id, are listed
        in one warning in the log.
        """
        try:
            check_keywords(overrides)
            entries = entries_of_mapping(mapping)
        finally:
            del mapping  # a traceback that shows locals must not show the secrets in the mapping
        return cls._from(entries, overrides)

    @classmethod
    def from_env(
        cls, prefix: str = "AIOPRODUCER_", environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> Self:
        """Create a producer from environment variables, such as AIOPRODUCER_BOOTSTRAP_SERVERS.

        Args:
            prefix: the prefix of the variables that are settings.
            environ: the variables; the process's own if None.
            overrides: keywords of `Producer`, which take precedence over the variables.

        Raises:
            ConfigError: see `from_config`; the text names the variable.
        """
        try:
            check_keywords(overrides)
            entries = entries_of_environment(prefix, os.environ if environ is None else environ)
        finally:
            del environ
        return cls._from(entries, overrides)

    @classmethod
    def from_properties(cls, file: str | os.PathLike[str], **overrides: Any) -> Self:
        """Create a producer from a properties file, such as the `client.properties` of Java's clients.

        Args:
            file: the path of the file, which is UTF-8 or Latin-1 and may contain the keys that `from_config` accepts.
            overrides: keywords of `Producer`, which take precedence over the file. These keywords may include
                settings that a file can't contain, such as functions.

        Raises:
            ConfigError: the file can't be read, or one of the reasons listed for `from_config` applies. The text
                names the file and the line.
        """
        check_keywords(overrides)
        return cls._from(entries_of_file(file), overrides)

    @classmethod
    def _from(cls, entries: list[Entry], overrides: dict[str, Any]) -> Self:
        sourced = resolve(entries, overrides)
        producer = cls.__new__(cls)
        producer._sourced = sourced
        # A subclass may have its own __init__, which passes on the keywords that it does not know.
        try:
            cls.__init__(producer, **sourced.settings)
        except TypeError:
            # The __init__ of a subclass may require a setting that is missing because its entry is invalid.
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
