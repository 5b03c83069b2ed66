"""The context of a request in a broker, and the parts of the request to which a scripted fault applies."""

from __future__ import annotations

import pytest

from aioproducer.protocol.api import ApiKey, RequestHeader
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ProduceRequest
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.authorizer import Operation, ResourceType
from aioproducer.testing.embedded.broker_security import Session
from aioproducer.testing.embedded.faults import FaultScript
from aioproducer.testing.embedded.inspection import SeenRequest
from aioproducer.testing.embedded.request_context import RequestContext

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def request_context_of(*scripted: dict[str, object], principal: str = "User:alice") -> RequestContext:
    """The context of a Produce request, with these faults, to broker 0 of a cluster that is not started."""
    script = FaultScript()
    faults = [script.add(ApiKey.PRODUCE, **wishes) for wishes in scripted]
    header = RequestHeader(ApiKey.PRODUCE, 12, 1, "direct")
    seen = SeenRequest(0, header, ProduceRequest(), 0.0)
    return RequestContext(EmbeddedCluster(versions="3.9"), 0, seen, faults, Session(principal))


def test_version_and_release_are_those_of_the_request_and_its_broker():
    one = request_context_of()

    assert one.version == 12
    assert one.release is one.cluster.broker(0).release
    assert not one.release.transaction_version


# Each row: the target of a fault, and whether the fault applies to the request, t, t-0, t-1 and u-0.
NARROWNESS = [
    ({}, [True, True, True, True, True]),
    ({"topic": "t"}, [False, True, True, True, False]),
    ({"topic": "t", "partition": 1}, [False, False, False, True, False]),
    ({"partition": 0}, [False, False, True, False, True]),
]
PARTS = [(None, None), ("t", None), ("t", 0), ("t", 1), ("u", 0)]


@pytest.mark.parametrize(("target", "expected"), NARROWNESS)
def test_a_fault_applies_only_to_its_target(target, expected):
    refusing = request_context_of({"error": 6, **target})
    omitting = request_context_of({"omit_partitions": True, **target})

    assert [refusing.refusal(*part) is NOT_LEADER for part in PARTS] == expected
    assert [omitting.omits(*part) for part in PARTS[1:]] == expected[1:]


def test_an_error_applies_before_or_after_the_work_but_never_twice():
    early, late = request_context_of({"error": 6}), request_context_of({"error": 6, "after_append": True})

    assert (early.refusal("t", 0), early.late_error("t", 0)) == (NOT_LEADER, None)
    assert (late.refusal("t", 0), late.late_error("t", 0)) == (None, NOT_LEADER)


def test_each_partition_has_the_error_of_its_own_fault():
    one = request_context_of(
        {"error": 6, "topic": "t", "partition": 0}, {"error": 5, "topic": "t", "partition": 1}
    )

    assert [one.refusal("t", index) for index in range(3)] == [
        NOT_LEADER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        None,
    ]


def test_a_fault_without_an_error_rejects_nothing_and_omits_nothing():
    one = request_context_of({"delay": 1.0})

    assert (one.refusal(), one.refusal("t", 0), one.late_error("t", 0)) == (None, None, None)
    assert not one.omits("t", 0)


def test_rights_are_those_of_the_session():
    alice, bob = request_context_of(), request_context_of(principal="User:bob")
    for one in (alice, bob):
        one.cluster.authorizer.deny(Operation.WRITE, topic="t", principal="User:alice")

    answers = [one.denied(Operation.WRITE, ResourceType.TOPIC, "t") for one in (alice, bob)]

    assert answers == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, None]
