"""Scenarios of the fault catalogue: the numbers of batches whose outcome is in doubt."""

from __future__ import annotations

from aioproducer.protocol.api import ApiKey
from tests.campaigns.simulation.faults import TOPIC
from tests.campaigns.simulation.history import Told
from tests.campaigns.simulation.oracle import number_of
from tests.campaigns.simulation.stage import Stage, scenario

PRODUCE = ApiKey.PRODUCE


@scenario("M16", versions="3.9", metadata_max_age_ms=300, retry_backoff_ms=1000, retry_backoff_max_ms=1000)
async def a_batch_in_doubt_is_in_the_log_of_the_new_topic(stage: Stage) -> None:
    """Before Kafka 4, a batch is sent by topic name, so the log of a re-created topic may already contain
    it. With new numbers it would be there twice."""
    await stage.warm_up()
    for lost in ({"drop_after_append": True}, {"truncate": 9}):
        stage.cluster.delete_topic(TOPIC)
        stage.world.create_topic()
        stage.faults.add(PRODUCE, **lost)
        (sent,) = await stage.send()
        (told,) = await stage.told([sent])
        found = [number_of(record.value) for record in stage.partition().records()]
        assert found.count(sent.number) == 1, found
        assert told in (Told.UNKNOWN, Told.ACKNOWLEDGED), sent.error
        await stage.delivered(await stage.send(3))
