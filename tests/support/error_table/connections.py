"""Scenes about metadata and connections: the results of records waiting for either, and of producer id requests."""

from __future__ import annotations

from functools import partial
from random import Random

from aioproducer import Outcome
from aioproducer.errors import (
    AuthenticationError,
    DeliveryError,
    InvalidTopicError,
    TopicAuthorizationError,
    UnsupportedSaslMechanismError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.protocol.outcomes import Action, Row
from aioproducer.testing.embedded.broker_security import Security
from tests.support.error_table.stage import Stage, check_flags, error_of, play, staged

METADATA, INIT, VERSIONS = ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID, ApiKey.API_VERSIONS
SASL = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)

REFUSALS = {
    Code.INVALID_TOPIC_EXCEPTION: (InvalidTopicError, []),
    Code.TOPIC_AUTHORIZATION_FAILED: (TopicAuthorizationError, []),
}
"""The errors that `send` raises for a topic, with their flags."""


def walk(api: ApiKey, code: int) -> list[Row]:
    """The rows seen when a broker returns a code, one for each part of the response that can contain it."""
    if api is METADATA:
        scenes = [partial(_topic, code)] if code in REFUSALS else [partial(_whole_answer, code)]
        if code not in (*REFUSALS, Code.REBOOTSTRAP_REQUIRED, Code.NONE):
            scenes.append(partial(_topic, code))
    elif api is INIT:
        scenes = [partial(_producer_id, code)]
    elif api is VERSIONS:
        scenes = [partial(_versions, code)]
    else:
        scenes = [partial(_sasl, api, code)]
    return [play(scene) for scene in scenes]


# Metadata


async def _topic(code: int) -> Row:
    """The response contains an error code for a topic."""
    async with staged() as on:
        on.cluster.create_topic("u", 1)
        before, began = len(on.requests(METADATA)), on.loop.time()
        on.refuse(METADATA, code, topic="u")
        error = await error_of(on.producer.send_and_wait("u", b"1"))
        asked = len(on.requests(METADATA)) - before
        if error is not None:
            kind, flags = REFUSALS[Code(code)]
            assert type(error) is kind
            check_flags(error, *flags)
            assert (asked, error.topic) == (1, "u")
            assert on.loop.time() - began < 0.1, "send() waited although waiting does not help"
            assert (await on.producer.send_and_wait("u", b"2")).offset == 0, "the next record must succeed"
            return Row(Action.FAIL, error.outcome)
        assert asked == 2
        assert on.loop.time() - began > 0.5
        return Row(Action.RETRY, Outcome.NOT_PERSISTED)


async def _whole_answer(code: int) -> Row:
    async with staged() as on:
        before, connections = len(on.requests(METADATA)), len(on.requests(VERSIONS))
        if code:
            on.refuse(METADATA, code)
        assert (await on.producer.send_and_wait("t", b"1")).offset == 0
        new = len(on.requests(VERSIONS)) - connections
        asked = len(on.requests(METADATA)) - before
        if asked == 1:
            return Row(Action.SUCCEED, Outcome.NOT_PERSISTED)
        assert asked >= 2
        # One new connection is to the broker itself; a second one means that a bootstrap address was used.
        return Row(Action.REBOOTSTRAP if new > 1 else Action.RETRY, Outcome.NOT_PERSISTED)


# Producer ids, without transactions


async def _producer_id(code: int) -> Row:
    async with staged() as on:
        if code:
            on.refuse(INIT, code)
        before = len(on.requests(INIT))
        began = on.loop.time()
        error = await error_of(on.producer.send_and_wait("t", b"1", partition=0))
        asked = len(on.requests(INIT)) - before
        if error is None:
            assert asked == (1 if code == 0 else 2)
            assert asked == 1 or on.loop.time() - began > 0.5
            return Row(Action.SUCCEED if asked == 1 else Action.RETRY, Outcome.NOT_PERSISTED)
        assert type(error) is DeliveryError
        check_flags(error)
        assert (asked, error.attempts, getattr(error.last_error, "code", None)) == (1, 0, code)
        assert (await on.producer.send_and_wait("t", b"2", partition=0)).offset == 0, (
            "a later record must succeed"
        )
        return Row(Action.FAIL, error.outcome)


# Handshakes


async def _versions(code: int) -> Row:
    async with staged(starts=False) as on:
        if code:
            on.refuse(VERSIONS, code)
        await on.producer.start()
        asked = on.requests(VERSIONS)
        # Correlation ids start at 0 on each connection.
        same_connection = len(asked) > 1 and asked[1].header.correlation_id > 0
        if code == 0:
            assert not same_connection
            return Row(Action.SUCCEED, Outcome.NOT_PERSISTED)
        if same_connection:
            assert asked[1].header.version < asked[0].header.version
            return Row(Action.DOWNGRADE, Outcome.NOT_PERSISTED)
        assert len(asked) == 2
        return Row(Action.CLOSE, Outcome.NOT_PERSISTED)


async def _sasl(api: ApiKey, code: int) -> Row:
    security = Security(mechanisms=["SCRAM-SHA-256"], users={"me": "secret"}, random=Random(1))
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "me",
        "sasl_plain_password": "secret",
    }
    async with staged(starts=False, cluster={"security": security}, **settings) as on:
        if code:
            on.refuse(api, code)
        error = await error_of(on.producer.start())
        connections = len(on.requests(VERSIONS))
        if error is None:
            assert (await on.producer.send_and_wait("t", b"1")).offset == 0
            return Row(Action.SUCCEED if connections == 1 else Action.CLOSE, Outcome.NOT_PERSISTED)
        assert connections == 1
        check_flags(error)
        assert isinstance(error, AuthenticationError)
        return Row(_refusal(on, api, error), error.outcome)


def _refusal(on: Stage, api: ApiKey, error: AuthenticationError) -> Action:
    if isinstance(error, UnsupportedSaslMechanismError):
        assert error.offered == ("SCRAM-SHA-256",)
        return Action.OTHER_MECHANISM
    return Action.NO_SASL if "does not support SASL" in str(error) else Action.FAIL
