"""The options for a write, read and checked on the driver before a task runs.

Spark passes option names in lower case. An option named `kafka.<name>` sets the producer setting with the Java name
<name>."""

from __future__ import annotations

import difflib
import inspect
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aioproducer
from aioproducer import ConfigError, KafkaError, MetadataTimeoutError
from aioproducer.blocking import Producer


class SinkError(KafkaError):
    """A write to Kafka failed. The text says why, and includes Kafka's reason if there is one."""


class PlanningError(SinkError, pickle.PicklingError):
    """A write can't be planned.

    A write is planned while PySpark pickles the writer. PySpark re-raises a PicklingError unchanged, and wraps any
    other error in one: "Could not serialize object"."""


class MissingTopicError(SinkError):
    """The cluster does not have a topic. Another attempt at the task would only wait again."""


OWN = {
    name.lower(): name
    for name in (
        "topic",
        "topics",
        "delivery",
        "transactionalId",
        "txnAppId",
        "txnVersion",
        "onCheckpointReset",
        "logAppendTime",
        "reports",
    )
}
"""The sink's options: the lower-case names that Spark passes, and the names that users write."""
SPARKS = {"checkpointlocation", "queryname", "outputmode", "path", "includeheaders"}
"""Options of Spark itself, or of its Kafka source, which the sink ignores."""

PREFIX = "kafka."
REFUSED = {
    "key.serializer": "is not supported as keys are serialized with ByteArraySerializer.",
    "value.serializer": "is not supported as values are serialized with ByteArraySerializer.",
    "transactional.id": "is not supported; set transactionalId and delivery=exactly_once instead.",
}
"""Rejected settings: two that Spark's own sink rejects with the same text, and one that a sink option sets."""

OF_TABLES = (
    "The OPTIONS of a table do not reach a Python sink; write INSERT INTO ... WITH ('kafka.bootstrap.servers' = "
    "'host:port', 'topic' = '...') SELECT ..., or use the DataFrame API"
)

MISSING = "UNKNOWN_TOPIC_OR_PARTITION"
TOPIC_WAIT = 10.0
"""Seconds to wait for a topic that the cluster reports as unknown, unless the kafka.max.block.ms option is set."""
LONGEST_TRANSACTION = "900000"
"""The brokers' default for transaction.max.timeout.ms, in milliseconds. A micro-batch has to end within this time."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options for a write, which Spark sends to the executors. The repr hides all `kafka.` options."""

    kafka: dict[str, str] = field(repr=False)
    """The producer's configuration, under Java's names."""
    topic: str | None = None
    """The topic for all rows, or None if the `topic` column names each row's topic."""
    topics: tuple[str, ...] = ()
    """The topics of an exactly_once write; the `topic` column chooses one for each row if there are several."""
    exactly_once: bool = False
    transactional_id: str = ""
    app_id: str | None = None
    """With `version`, the identity of a batch write: a repeated write is recognized and skipped."""
    version: int | None = None
    accepts_reset: bool = False
    """True if a new checkpoint may start again at batch 0."""
    log_append_time: bool = False
    """True if the topic's message.timestamp.type is LogAppendTime."""
    checkpoint: str = ""
    """The stream's checkpointLocation, or an empty string."""
    reports: str = ""
    """A file on the driver to which each write adds a line, or an empty string."""

    def check_reports(self) -> None:
        """Check that the directory for the reports exists. Called before anything is written.

        If the directory disappears later, that is only logged, since a finished write must not be repeated.

        Raises:
            ConfigError: the directory does not exist.
        """
        if self.reports and not Path(self.reports).parent.is_dir():
            raise _wrong("reports", self.reports, "a file in an existing directory on the driver's machine")

    def producer(self, **settings: object) -> Producer:
        """Return a producer with these options, not yet started."""
        # A task ends before a broker would ask for its metrics.
        is_set = not self.kafka.keys().isdisjoint(("enable.metrics.push", "enable_metrics_push"))
        quiet = {} if is_set else {"enable_metrics_push": False}
        # The settings are merged, because keywords would override the options, and a contradiction must be an error.
        return Producer.from_config({**self.kafka, **settings}, **quiet)

    def partitions_of(self, producer: Producer, topic: str) -> int:
        """Return the number of the topic's partitions.

        Raises:
            MissingTopicError: the cluster does not have the topic.
            KafkaError: the cluster did not answer.
        """
        is_set = not self.kafka.keys().isdisjoint(("max.block.ms", "max_block_ms"))
        try:
            return len(producer.partitions_for(topic, timeout=None if is_set else TOPIC_WAIT))
        except MetadataTimeoutError as error:
            if error.reported == MISSING:
                raise MissingTopicError(
                    f"{error}; create the topic, or correct the 'topic' option or the 'topic' column"
                ) from error
            if is_set:
                raise
        return len(producer.partitions_for(topic))  # the brokers are not answering, which may be temporary


_SETTINGS = re.compile(
    r"\b(?:{}|(?:sasl|ssl)_[a-z_]+)\b".format(
        "|".join(name for name in inspect.signature(aioproducer.Producer).parameters if "_" in name)
    )
)
"""Matches the names of producer settings whose options have different names."""


def in_options(text: str) -> str:
    """Return a producer's error text with setting names replaced by option names."""
    return _SETTINGS.sub(lambda found: PREFIX + found[0].replace("_", "."), text)


def read_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Read and check the options for a write.

    Raises:
        ConfigError: an option is unknown, malformed, missing, or contradicts another one.
    """
    kafka, own, unknown = _by_kind(given)
    is_empty = not given
    checkpoint = next((value for name, value in given.items() if name.lower() == "checkpointlocation"), "")
    del given  # a traceback that shows locals must not show passwords
    if unknown:
        raise _unknown(unknown)
    for name, why in REFUSED.items():
        if name in kafka:
            raise ConfigError(f"Kafka option '{name}' {why}", setting=name, value=None)
    if not kafka.get("bootstrap.servers"):
        advice = OF_TABLES if is_empty else "kafka.bootstrap.servers is host:port,host:port"
        raise ConfigError(
            f"Kafka option bootstrap.servers is not set. Please make sure it is set and retry. {advice}",
            setting="kafka.bootstrap.servers",
            value=None,
        )
    delivery = own.get("delivery", "at_least_once")
    if delivery not in ("at_least_once", "exactly_once"):
        raise _wrong("delivery", delivery, "at_least_once or exactly_once")
    if own.get("topic") == "":
        raise _wrong("topic", "", "the name of a topic")
    options = SinkOptions(kafka, own.get("topic"))
    if delivery == "exactly_once":
        kafka.setdefault("transaction.timeout.ms", LONGEST_TRANSACTION)
        options = _exactly_once(kafka, own, is_stream)
    else:
        for low in (
            "topics",
            "transactionalid",
            "txnappid",
            "txnversion",
            "oncheckpointreset",
            "logappendtime",
        ):
            if low in own:
                raise ConfigError(
                    f"option {OWN[low]} requires delivery=exactly_once", setting=OWN[low], value=own[low]
                )
    options = replace(options, reports=own.get("reports", ""), checkpoint=checkpoint)
    # Contradictory settings raise their error now, on the driver, rather than in a task on another machine.
    options.producer(**({"transactional_id": options.transactional_id} if options.exactly_once else {}))
    return options


class HiddenOptions(dict[str, Any]):
    """Options whose repr hides all values, since passwords are among them."""

    def __repr__(self) -> str:
        return f"<hidden values of {', '.join(map(str, self))}>"


def _by_kind(given: Mapping[str, str]) -> tuple[HiddenOptions, dict[str, str], str]:
    """Return the producer's options, the sink's own, and the name of an unknown option (or an empty string)."""
    kafka, own = HiddenOptions(), {}
    for name, value in given.items():
        low = name.lower()
        if low.startswith(PREFIX):
            kafka[low.removeprefix(PREFIX)] = value
        elif low in OWN:
            own[low] = value
        elif low not in SPARKS:
            return kafka, own, name
    return kafka, own, ""


def _exactly_once(kafka: dict[str, str], own: Mapping[str, str], is_stream: bool) -> SinkOptions:
    if not own.get("transactionalid"):
        raise ConfigError(
            "delivery=exactly_once requires the 'transactionalId' option: a name that only this query uses, and that "
            "stays the same when the query is restarted",
            setting="transactionalId",
            value=None,
        )
    topics = _topics(own)
    app_id, version = own.get("txnappid"), None
    if is_stream and (app_id is not None or "txnversion" in own):
        raise ConfigError(
            "txnAppId and txnVersion are for batch writes; a stream uses its query's id and batch ids instead",
            setting="txnAppId",
            value=app_id,
        )
    if (app_id is None) is not ("txnversion" not in own):
        raise ConfigError(
            "txnAppId and txnVersion must be set together: txnAppId is the name of the job, and txnVersion is the "
            "number of this write (0 or more), which stays the same if the write is repeated",
            setting="txnAppId",
            value=app_id,
        )
    if app_id is not None:
        text = own["txnversion"]
        if not (text.isascii() and text.isdigit()) or int(text) >= 2**63:
            raise _wrong("txnVersion", text, "a whole number, 0 or more")
        version = int(text)
    return SinkOptions(
        kafka,
        own.get("topic"),
        topics,
        True,
        own["transactionalid"],
        app_id,
        version,
        _flag(own, "onCheckpointReset", {"fail": False, "accept": True}),
        _flag(own, "logAppendTime", {"false": False, "true": True}),
    )


def _topics(own: Mapping[str, str]) -> tuple[str, ...]:
    """Return the topics of an exactly_once write, whose partitions are in the transaction before a task runs."""
    if "topic" in own and "topics" in own:
        raise ConfigError(
            "set the 'topic' option for all rows, or 'topics' for the names in the 'topic' column, but not both",
            setting="topics",
            value=own["topics"],
        )
    if "topic" in own:
        return (own["topic"],)
    if "topics" not in own:
        raise ConfigError(
            "delivery=exactly_once requires the names of its topics before it starts; set the 'topic' option, or "
            "topics=a,b,c with each name that the 'topic' column can contain",
            setting="topic",
            value=None,
        )
    names = tuple(name.strip() for name in own["topics"].split(","))
    if not all(names) or len(set(names)) < len(names):
        raise _wrong("topics", own["topics"], "the names of different topics, separated by commas")
    return names


def _flag(own: Mapping[str, str], name: str, values: Mapping[str, bool]) -> bool:
    text = own.get(name.lower(), next(iter(values)))
    if text.lower() not in values:
        raise _wrong(name, text, " or ".join(values))
    return values[text.lower()]


def _wrong(name: str, value: str, wanted: str) -> ConfigError:
    return ConfigError(f"option {name}={value!r} must be {wanted}", setting=name, value=value)


def _unknown(name: str) -> ConfigError:
    near = difflib.get_close_matches(name.lower(), [*OWN, PREFIX + "bootstrap.servers"], 1, 0.7)
    advice = (
        f"did you mean {OWN.get(near[0], near[0])}?"
        if near
        else f"write a producer setting as kafka.{name}; the sink's own options are {', '.join(OWN.values())}"
    )
    return ConfigError(f"there is no option {name}; {advice}", setting=name, value=None)
