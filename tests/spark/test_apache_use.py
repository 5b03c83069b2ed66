"""The tests of test_sink.py and test_wrong_use.py, on a real Kafka."""

from __future__ import annotations

import pytest

from aioproducer.testing import ApacheKafka
from tests.spark.test_sink import (  # noqa: F401  # collected here, with the fixtures of this module
    test_a_longer_list_of_topics_keeps_the_marker,
    test_another_thread_can_write_once_it_has_activated_the_session,
    test_each_write_has_a_line_in_the_drivers_log,
    test_exactly_once_writes_to_several_topics_and_places_rows_by_key,
    test_foreach_batch_writes_large_rows_in_small_arrow_batches,
)
from tests.spark.test_wrong_use import (  # noqa: F401
    test_a_continuous_query_with_a_local_checkpoint_ends_at_once,
    test_an_unknown_topic_is_named_with_kafkas_error,
    test_with_speculation_no_task_writes_exactly_once,
)
from tests.support.apache_clusters import SHARED, running
from tests.support.spark_stage import ApacheStage

pytestmark = [pytest.mark.apache, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(request):
    kafka = ApacheKafka(config={"auto.create.topics.enable": False}, jvm_args=SHARED)
    with running(kafka, request=request):
        yield ApacheStage(kafka)


@pytest.fixture
def topic(topic, cluster):
    """A topic with three partitions."""
    name = f"{topic}-real"
    cluster.create_topic(name, 3)
    return name
