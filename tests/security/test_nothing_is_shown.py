"""No error text, no log and no repr shows a record's key, value or headers, or a password; the tests search for
canaries."""

from __future__ import annotations

import asyncio
import logging
import pickle
import traceback
from typing import Any

import pytest

from aioproducer import ConfigError, DeliveryError, Producer
from aioproducer.errors import InvalidRecordError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.settings.table import SecuritySettings
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS, in_virtual_time
from tests.support.producing import PRODUCE, error_of, producing, quick_producer

# Assembled here, so that no source line quoted by a traceback contains them in full.
CANARIES = {name: f"{name}-" + "canary"[::-1] for name in ("key", "value", "header", "name")}
KEY, VALUE, HEADER, NAME = CANARIES.values()
HEADERS = [(NAME, HEADER.encode())]


def everything_about(error: BaseException) -> str:
    """Return everything that a log, a terminal or an error tracker could show of an error, including its causes."""
    texts = ["".join(traceback.format_exception(error))]
    seen: BaseException | None = error
    while seen is not None:
        texts += [str(seen), repr(seen), repr(vars(seen)), repr(seen.args), str(pickle.dumps(seen, 0))]
        seen = seen.__cause__ or seen.__context__
    return "\n".join(texts)


def shown_in(text: str) -> list[str]:
    """Return the canaries in a text, unchanged or in hexadecimal."""
    return [name for name, word in CANARIES.items() if word in text or word.encode().hex() in text]


LEAKY: dict[str, dict[str, Any]] = {
    "text as value": {"value": VALUE},
    "a list as value": {"value": [VALUE]},
    "text as key": {"key": KEY},
    "headers as a dict": {"headers": {NAME: HEADER}},
    "headers as text": {"headers": HEADER},
    "a header of text": {"headers": [(NAME, HEADER)]},
    "a header of three": {"headers": [(NAME, HEADER.encode(), VALUE)]},
    "headers where the partition belongs": {"partition": HEADERS},
    "the key where the partition belongs": {"partition": KEY.encode()},
    "the key where the timestamp belongs": {"timestamp_ms": KEY},
    "the value where the topic belongs": {"topic": VALUE.encode()},
    "the key where the timeout belongs": {"timeout": KEY},
    "too large": {"value": VALUE.encode() * 200},
    "a negative partition": {"partition": -1},
    "no such partition": {"partition": 5},
    "no such topic": {"topic": "unknown"},
    "a bad topic": {"topic": "a b"},
}


@pytest.mark.promise(
    "Coming from other clients", "no error text and no log shows a key, a value or a password"
)
@pytest.mark.parametrize("wrong", LEAKY.values(), ids=LEAKY)
@in_virtual_time
async def test_no_error_text_and_no_log_shows_the_content_of_a_rejected_record(wrong, caplog):
    caplog.set_level(logging.DEBUG)
    settings = {"max_request_size": 1024, "max_block_ms": 500 * MS * 1000, "allow_auto_create_topics": False}
    async with EmbeddedCluster(topics={"t": 1}, auto_create=False) as cluster:
        async with quick_producer(cluster, **settings) as producer:
            record = {"topic": "t", "value": VALUE.encode(), "key": KEY.encode(), "headers": HEADERS, **wrong}

            error = await error_of(producer.send(**record))

            assert shown_in(everything_about(error)) == []
            assert shown_in(caplog.text) == []


async def what_becomes_of_records(producer: Producer, cluster: EmbeddedCluster) -> list[object]:
    """Send records that are delivered, rejected by the broker, too late, and abandoned; return everything that is
    visible."""
    record = {"value": VALUE.encode(), "key": KEY.encode(), "headers": HEADERS}
    shown: list[object] = [producer, await producer.send_and_wait("t", **record)]
    for code in (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        cluster.faults.add(PRODUCE, error=code)
        delivery = await producer.send("t", **record)
        shown += [delivery, await error_of(delivery)]
    cluster.faults.add(PRODUCE, delay=60)
    late = await producer.send("t", **record, timeout=20 * MS)
    shown += [await error_of(late)]
    builder = producer.create_batch()
    builder.append(**record)
    shown += [builder, producer.metrics(), producer.config]
    await producer.send("t", **record)
    shown += [await producer.close(timeout=0), producer]
    return shown


@pytest.mark.promise(
    "Coming from other clients", "no error text and no log shows a key, a value or a password"
)
async def test_no_result_no_error_and_no_log_shows_the_content_of_sent_records(caplog):
    caplog.set_level(logging.DEBUG)
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0  # asyncio then logs every callback with its arguments
    try:
        async with EmbeddedCluster(topics={"t": 1}) as cluster:
            producer = quick_producer(cluster)
            await producer.start()
            shown = await what_becomes_of_records(producer, cluster)
    finally:
        loop.set_debug(False)

    errors = [thing for thing in shown if isinstance(thing, BaseException)]
    assert len(errors) == 4
    assert all(isinstance(error, DeliveryError) for error in errors)
    assert shown_in("".join(map(everything_about, errors))) == []
    assert shown_in("".join(f"{thing!r} {thing}" for thing in shown)) == []
    assert caplog.records
    assert shown_in(caplog.text) == []


async def test_a_partitioner_that_returns_the_key_is_not_quoted():
    async with producing(topics={"t": 2}, partitioner=lambda key, *_: key) as (_, producer):
        error = await error_of(producer.send("t", VALUE.encode(), KEY.encode()))

        assert type(error) is InvalidRecordError
        assert "partitioner" in str(error)
        assert "bytes" in str(error)
        assert shown_in(everything_about(error)) == []


# -------------------------------------------------------------------------------------------------- settings

SECRET = "-".join(["hunter", "2"])


@pytest.mark.parametrize(
    "address",
    [
        "kafka://{user}:{password}@broker:9092",
        "{user}:{password}@broker:9092",
        "broker:1,{user}:{password}@other",
    ],
)
def test_an_address_with_credentials_is_refused_without_showing_them(address):
    text = address.format(user="me", password=SECRET)

    for servers in (text, [text]):
        with pytest.raises(ConfigError) as caught:
            Producer(servers)

        assert caught.value.setting == "bootstrap_servers"
        assert SECRET not in everything_about(caught.value)
        assert "host:port" in str(caught.value)


SECRETIVE = [
    name
    for name in SecuritySettings.__annotations__
    if "password" in name or "secret" in name or name.endswith("_key") or "jaas" in name
]


@pytest.mark.parametrize("name", SECRETIVE)
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "nonsense"])
def test_a_secret_in_its_setting_is_never_shown(name, protocol, caplog):
    caplog.set_level(logging.DEBUG)
    for value in (SECRET, SECRET.encode(), [SECRET]):
        try:
            producer = Producer("localhost:9092", security_protocol=protocol, **{name: value})
        except ConfigError as error:
            shown = everything_about(error)
        else:
            shown = (
                f"{producer!r} {producer.config} {producer.config!r} {getattr(producer.config, name, None)!r}"
            )
        assert SECRET not in shown
    assert SECRET not in caplog.text


@pytest.mark.parametrize("name", SECRETIVE)
def test_a_secret_under_a_misspelt_name_is_not_shown(name):
    with pytest.raises(ConfigError) as caught:
        Producer("localhost:9092", **{name + "x": SECRET})

    assert caught.value.setting == name + "x"
    assert name in str(caught.value).replace(name + "x", "")
    assert SECRET not in everything_about(caught.value)
