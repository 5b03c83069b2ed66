"""What tests look at: the records that a cluster keeps, the requests that its brokers have read."""

from __future__ import annotations

from aioproducer.testing import EmbeddedCluster
from tests.support.raw_client import RawClient, address, batch_of


async def test_records_begin_where_the_log_does_also_within_a_batch():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        await client.produce(batch_of(*(b"%d" % number for number in range(10))))
        cluster.log("t", 0).delete_before(5)

        for committed in (False, True):
            records = cluster.records("t", committed=committed)
            assert [record.offset for record in records] == [5, 6, 7, 8, 9]
