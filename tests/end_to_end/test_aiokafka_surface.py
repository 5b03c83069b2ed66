"""The examples from aiokafka's documentation, run with aiokafka and with our producer; only the import differs.

Each run has its own cluster. The results and the logs must be the same."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiokafka
import aiokafka.errors
import pytest

import aioproducer
import aioproducer.compat.aiokafka.batch
import aioproducer.errors
from aioproducer.compat import aiokafka as compat
from aioproducer.settings.table import SecuritySettings
from aioproducer.testing import EmbeddedCluster
from tests.support.aiokafka_usages import NOON, USAGES, Usage
from tests.support.producing import within

PARTITIONS = 10
AIOKAFKA = SimpleNamespace(
    AIOKafkaProducer=aiokafka.AIOKafkaProducer,
    TopicPartition=aiokafka.TopicPartition,
    KafkaError=aiokafka.errors.KafkaError,
    ProducerClosed=aiokafka.errors.ProducerClosed,
    IllegalOperation=aiokafka.errors.IllegalOperation,
)
"""from aiokafka import AIOKafkaProducer, TopicPartition; from aiokafka.errors import ..."""

OURS = SimpleNamespace(
    AIOKafkaProducer=aioproducer.Producer,
    TopicPartition=aioproducer.TopicPartition,
    KafkaError=aioproducer.errors.KafkaError,
    ProducerClosed=aioproducer.errors.ProducerClosed,
    IllegalOperation=aioproducer.errors.IllegalStateError,
)
"""from aioproducer import Producer as AIOKafkaProducer, TopicPartition; from aioproducer.errors import ..."""

COMPAT = SimpleNamespace(
    AIOKafkaProducer=compat.AIOKafkaProducer,
    TopicPartition=compat.TopicPartition,
    KafkaError=compat.errors.KafkaError,
    ProducerClosed=compat.errors.ProducerClosed,
    IllegalOperation=compat.errors.IllegalOperation,
)
"""from aioproducer.compat.aiokafka import ..."""


class Logged(NamedTuple):
    """A record in the log."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int | None
    """None if the clock set it."""


# ----------------------------------------------------------------------------------------- running the examples


async def run(usage: Usage, imported: SimpleNamespace) -> tuple[Any, list[Logged], set[str]]:
    """Return the results of the example, the log, and the codecs of its batches."""
    began = NOON + 1_000_000  # usages set earlier timestamps, the clock sets later ones
    async with EmbeddedCluster(topics={"numbers": PARTITIONS}) as cluster:
        seen = await within(30, usage(imported, cluster.bootstrap_servers))
        log, codecs = [], set()
        for partition in range(PARTITIONS):
            codecs |= {batch.header.codec.name for batch in cluster.batches("numbers", partition)}
            log += [
                Logged(
                    partition,
                    record.offset,
                    record.key,
                    record.value,
                    tuple(record.headers),
                    record.timestamp if record.timestamp < began else None,
                )
                for record in cluster.records("numbers", partition)
            ]
        return seen, log, codecs


@pytest.mark.promise("Coming from other clients", "aiokafka's documented usage runs with the import changed")
@pytest.mark.parametrize("usage", USAGES, ids=lambda function: function.__name__)
async def test_aiokafkas_usage_does_the_same_with_the_import_changed(usage):
    theirs = await run(usage, AIOKAFKA)
    ours = await run(usage, OURS)
    by_compat = await run(usage, COMPAT)

    assert ours == theirs
    assert by_compat == theirs


def test_every_usage_that_sends_writes_records_to_compare():
    silent = {"partitions_for", "settings_that_make_no_sense_are_value_errors"}

    for function in USAGES:
        _, log, _ = asyncio.run(run(function, OURS))
        assert bool(log) is (function.__name__ not in silent), function.__name__


# ----------------------------------------------------------------------------------------------- signatures

ELSEWHERE = {
    "loop": "deprecated; the producer belongs to the loop in which it is started",
    "api_version": "deprecated and without effect; versions are negotiated with each broker",
}
"""The settings of aiokafka that our producer rejects, with the reason."""


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters.values()
    return {parameter.name: parameter for parameter in found if parameter.name != "self"}


METHODS = ["send", "send_and_wait", "send_batch", "create_batch", "partitions_for", "start"]
METHODS += ["transaction", "begin_transaction", "commit_transaction", "abort_transaction"]
METHODS += ["send_offsets_to_transaction"]


@pytest.mark.parametrize("method", METHODS)
def test_methods_take_aiokafkas_arguments_in_aiokafkas_order(method):
    theirs = parameters(getattr(aiokafka.AIOKafkaProducer, method))
    ours = parameters(getattr(aioproducer.Producer, method))

    shared = [name for name in ours if name in theirs]
    assert shared == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
        assert ours[name].kind == parameter.kind
    # Our additional parameters come after aiokafka's and are keyword-only.
    assert all(ours[name].kind is inspect.Parameter.KEYWORD_ONLY for name in ours.keys() - theirs.keys())


def test_every_public_method_of_aiokafkas_producer_exists():
    public = {name for name in dir(aiokafka.AIOKafkaProducer) if not name.startswith("_")}

    missing = {name for name in public if not hasattr(aioproducer.Producer, name)}

    assert missing == set()


@pytest.mark.parametrize("method", [*METHODS, "flush", "stop", "__aenter__", "__aexit__"])
def test_methods_of_the_compat_producer_have_aiokafkas_signatures(method):
    theirs = parameters(getattr(aiokafka.AIOKafkaProducer, method)).values()
    ours = parameters(getattr(compat.AIOKafkaProducer, method)).values()

    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert our.default == their.default
        assert our.kind == their.kind
        assert our.name == their.name or method == "__aexit__"


def test_every_public_method_of_aiokafkas_producer_exists_in_compat():
    public = {name for name in dir(aiokafka.AIOKafkaProducer) if not name.startswith("_")}

    assert {name for name in public if not hasattr(compat.AIOKafkaProducer, name)} == set()


def test_every_setting_of_aiokafkas_producer_exists_or_its_absence_has_a_reason():
    theirs = set(parameters(aiokafka.AIOKafkaProducer))
    ours = {*parameters(aioproducer.Producer), *SecuritySettings.__annotations__}

    assert theirs - ours == set(ELSEWHERE)


def test_metadata_has_aiokafkas_fields():
    fields = aiokafka.structs.RecordMetadata._fields

    assert [name for name in fields if not hasattr(aioproducer.RecordMetadata, name)] == []


def test_the_batch_builder_has_aiokafkas_methods():
    theirs = aiokafka.producer.message_accumulator.BatchBuilder
    public = {name for name in dir(theirs) if not name.startswith("_")}

    for ours in (aioproducer.BatchBuilder, compat.batch.BatchBuilder):
        assert {name for name in public if not hasattr(ours, name)} == set()
