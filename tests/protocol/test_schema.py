"""Declarations of messages: versions, defaults, and representations."""

from __future__ import annotations

import pytest

from aioproducer.protocol.api_keys import VersionRange
from aioproducer.protocol.messages import MetadataRequest, ProduceRequest
from aioproducer.protocol.schema import LATEST, structs_of, version_range


@pytest.mark.parametrize(
    ("text", "expected"), [("3+", (3, LATEST)), ("8-10", (8, 10)), ("4", (4, 4)), ("0+", (0, LATEST))]
)
def test_versions_are_written_as_in_the_schemas_of_kafka(text, expected):
    assert version_range(text) == VersionRange(*expected)


def test_an_omitted_field_has_its_default():
    request = MetadataRequest()

    assert request.allow_auto_topic_creation is True
    assert request == MetadataRequest()
    assert request != MetadataRequest(allow_auto_topic_creation=False)


def test_a_field_that_is_not_declared_is_refused():
    with pytest.raises(TypeError, match="no_such_field"):
        MetadataRequest(no_such_field=1)


def test_the_structs_of_a_message_are_found_by_name():
    assert set(structs_of(ProduceRequest)) >= {"TopicProduceData", "PartitionProduceData"}


def test_a_message_shows_its_fields_and_cuts_long_ones():
    shown = repr(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t" * 1000)]))

    assert "MetadataRequest(" in shown
    assert len(shown) < 700
