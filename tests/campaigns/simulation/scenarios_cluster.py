"""Scenarios of the fault catalogue: metadata and leaders (M...), appends (B...), sequences (S...), resources (Z...)."""

from __future__ import annotations

import asyncio

from aioproducer.errors import MetadataTimeoutError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.records.idempotence import LAST_EPOCH, LAST_SEQUENCE
from aioproducer.testing import Operation
from tests.campaigns.simulation.faults import TOPIC
from tests.campaigns.simulation.history import Told
from tests.campaigns.simulation.stage import Stage, scenario

PRODUCE = ApiKey.PRODUCE


@scenario("M1", brokers=3)
async def a_leader_moves_and_the_old_one_says_where_to(stage: Stage) -> None:
    await stage.warm_up()
    for to in (1, 2, 0):
        stage.cluster.move_leader(TOPIC, 0, to)
        await stage.delivered(await stage.send(8))


@scenario("M2", brokers=3, request_timeout_ms=500)
async def a_leader_falls_silent_with_five_batches_in_flight(stage: Stage) -> None:
    for _ in range(3):
        await stage.warm_up()
        leader = stage.cluster.leader(TOPIC, 0)
        stage.cluster.freeze_broker(leader)
        records = await stage.send(12)
        await asyncio.sleep(0.05)
        stage.cluster.move_leader(TOPIC, 0, (leader + 1) % 3)
        await stage.delivered(records)
        stage.cluster.thaw_broker(leader)
        await asyncio.sleep(1)


@scenario("M3", partitions=4)
async def the_first_batch_is_rejected_and_its_successors_would_be_accepted(stage: Stage) -> None:
    for index in range(4):
        stage.faults.add(PRODUCE, error=Code.NOT_LEADER_OR_FOLLOWER, topic=TOPIC, partition=index)
        await stage.delivered(await stage.send(8, partition=index))


@scenario("M5", brokers=3, request_timeout_ms=500)
async def a_leader_changes_before_the_append_is_replicated(stage: Stage) -> None:
    await stage.warm_up()
    for to in (1, 2, 0):
        stage.cluster.hold_replication(TOPIC, 0)
        records = await stage.send(4)
        await asyncio.sleep(0.05)
        stage.cluster.move_leader(TOPIC, 0, to)  # records that were not replicated are lost
        stage.cluster.release_replication(TOPIC, 0)
        await stage.delivered(records)
        assert sum(len(numbers) for numbers in stage.history.truncated.values()) > 0


@scenario("M8", delivery_timeout_ms=90_000)
async def a_partition_has_no_leader_for_a_minute(stage: Stage) -> None:
    await stage.warm_up()
    stage.partition().move_leader(-1)
    requests = stage.requests()
    records = await stage.send(5)
    await asyncio.sleep(60)
    stage.partition().move_leader(0)
    await stage.delivered(records)
    assert stage.requests() - requests <= 12, "requests were sent without a leader"


@scenario("M10", max_block_ms=2000)
async def an_unknown_topic_does_not_delay_the_others(stage: Stage) -> None:
    waiting = asyncio.ensure_future(stage.producer.send("nowhere", b"-1"))
    began = stage.loop.time()
    await stage.warm_up()
    assert stage.loop.time() - began < 0.1
    await stage.raises(MetadataTimeoutError, waiting)
    assert stage.loop.time() - began < 2.1


@scenario("M12", delivery_timeout_ms=3000)
async def a_topic_is_deleted_while_records_are_on_their_way(stage: Stage) -> None:
    await stage.warm_up()
    records = await stage.send(10)
    await asyncio.sleep(stage.random.uniform(0, 0.002))
    stage.cluster.delete_topic(TOPIC)
    told = await stage.told(records)
    assert Told.NOTHING not in told


@scenario("M13", "M16", partitions=3)
async def a_topic_is_re_created_with_more_or_fewer_partitions(stage: Stage) -> None:
    await stage.warm_up(3)
    for count in (5, 2, 3):
        records = await stage.send(5, partition=1)
        stage.cluster.delete_topic(TOPIC)
        stage.world.watch(stage.cluster.create_topic(TOPIC, count))
        stage.history.incarnations.append(stage.cluster.topics[TOPIC])
        records += await stage.send(5, partition=1)
        assert Told.NOTHING not in await stage.told(records)
        await asyncio.sleep(1)
        await stage.delivered(await stage.send(3, partition=1))


@scenario("M14", metadata_max_age_ms=200)
async def a_topic_vanishes_from_the_metadata_for_a_while(stage: Stage) -> None:
    await stage.warm_up()
    for _ in range(3):
        stage.faults.add(ApiKey.METADATA, error=Code.UNKNOWN_TOPIC_OR_PARTITION, count=5)
        records = await stage.send(3)
        await asyncio.sleep(1)
        records += await stage.send(3)
        await stage.delivered(records)
    epochs = {batch.header.producer_epoch for batch in stage.cluster.batches(TOPIC, 0)}
    assert epochs == {0}, "the numbers continue"


@scenario("M15", metadata_max_age_ms=500)
async def a_topic_gets_more_partitions(stage: Stage) -> None:
    await stage.warm_up()
    stage.cluster.add_partitions(TOPIC, 3)
    stage.world.watch(stage.cluster.topics[TOPIC])
    await stage.delivered(await stage.send(3, partition=2))
    await asyncio.sleep(1)
    assert await stage.producer.partitions_for(TOPIC) == {0, 1, 2}


@scenario("M24", brokers=3)
async def the_leader_changes_ten_times_a_second(stage: Stage) -> None:
    await stage.warm_up()
    records = []
    for step in range(40):
        stage.cluster.move_leader(TOPIC, 0, step % 3)
        records += await stage.send(2)
        await asyncio.sleep(0.1)
    await stage.delivered(records)


@scenario("M23", brokers=2, delivery_timeout_ms=60_000, metadata_max_age_ms=1000)
async def leader_epochs_go_backwards_after_a_restore(stage: Stage) -> None:
    await stage.warm_up()
    for node in (1, 0, 1):
        stage.cluster.move_leader(TOPIC, 0, node)
        await stage.delivered(await stage.send(2))
    for node in (0, 1):
        stage.stop(node)
    records = await stage.send(3)
    await asyncio.sleep(10)
    # The controllers were restored from a snapshot; the logs are unchanged.
    stage.partition().leader_epoch = 0
    for node in (0, 1):
        await stage.start(node)
    await stage.delivered(records)
    await stage.delivered(await stage.send(3))


@scenario("M25", brokers=3)
async def a_partition_moves_to_other_brokers(stage: Stage) -> None:
    await stage.warm_up()
    partition = stage.partition()
    partition.replicas, partition.isr = (0,), [0]
    records = []
    for old, new in ((0, 1), (1, 2), (2, 0)):
        records += await stage.send(3)
        partition.replicas = (old, new)  # the new replica must catch up first
        await asyncio.sleep(stage.random.uniform(0, 0.05))
        stage.cluster.set_isr(TOPIC, 0, [old, new])
        records += await stage.send(3)
        stage.cluster.move_leader(TOPIC, 0, new)
        partition.replicas, partition.isr = (new,), [new]
        records += await stage.send(3)
        await asyncio.sleep(stage.random.uniform(0, 0.05))
    await stage.delivered(records)
    assert not stage.history.truncated.get((TOPIC, 0))


@scenario("B4", brokers=3, min_insync_replicas=2, delivery_timeout_ms=60_000)
async def too_few_replicas_for_half_a_minute(stage: Stage) -> None:
    await stage.warm_up()
    stage.cluster.set_isr(TOPIC, 0, [0])
    records = await stage.send(5)
    await asyncio.sleep(30)
    stage.cluster.set_isr(TOPIC, 0, [0, 1, 2])
    await stage.delivered(records)


@scenario("B5", "B14", "B15")
async def an_error_after_the_append_and_then_success(stage: Stage) -> None:
    await stage.warm_up()
    for code in (Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Code.KAFKA_STORAGE_ERROR, Code.REQUEST_TIMED_OUT):
        stage.faults.add(PRODUCE, error=code, after_append=True, skip=stage.random.randrange(3))
        await stage.delivered(await stage.send(6))
    stage.faults.add(PRODUCE, error=Code.UNKNOWN_SERVER_ERROR, after_append=True)
    assert (await stage.told(await stage.send()))[0] is Told.UNKNOWN
    await stage.delivered(await stage.send(3))


@scenario("B6")
async def a_record_in_doubt_is_cancelled_and_its_numbers_are_not_used_again(stage: Stage) -> None:
    await stage.warm_up()
    for _ in range(4):
        stage.faults.add(PRODUCE, error=Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, after_append=True, count=2)
        (sent,) = await stage.send()
        await asyncio.sleep(stage.random.uniform(0, 0.1))
        sent.delivery.cancel()
        await stage.delivered(await stage.send(3))
        await asyncio.sleep(1)


@scenario("B7", "B8", "B10", batch_size=16_384, linger_ms=5)
async def batches_that_are_too_large_are_split_until_they_fit(stage: Stage) -> None:
    await stage.warm_up()
    stage.partition().config = stage.partition().config.changed({"max.message.bytes": "400"})
    records = await stage.send(40, size=60)
    culprit = await stage.send(size=600)
    records += await stage.send(40, size=60)
    await stage.delivered(records)
    assert await stage.told(culprit) == [Told.NOT_PERSISTED]
    assert stage.producer.metrics().splits > 0


@scenario("B9", batch_size=16_384, linger_ms=5)
async def a_batch_in_doubt_is_too_large_at_its_second_attempt(stage: Stage) -> None:
    await stage.warm_up()
    stage.faults.add(PRODUCE, drop_after_append=True)
    records = await stage.send(20, size=60)
    await asyncio.sleep(0.02)
    stage.partition().config = stage.partition().config.changed({"max.message.bytes": "400"})
    assert Told.NOT_PERSISTED not in await stage.told(records)
    await stage.delivered(await stage.send(2))


@scenario("B11", batch_size=16_384, linger_ms=5)
async def two_records_of_ten_are_rejected_and_the_others_are_sent_again(stage: Stage) -> None:
    partition = stage.partition()
    partition.config = partition.config.changed({"cleanup.policy": "compact"})
    records = [await stage._send_one(0, 10, None, {"key": None if n in (3, 7) else b"k"}) for n in range(10)]
    told = await stage.told(records)
    assert [n for n in range(10) if told[n] is Told.NOT_PERSISTED] == [3, 7]
    assert told.count(Told.ACKNOWLEDGED) == 8


@scenario("B13")
async def a_batch_arrives_damaged_twice(stage: Stage) -> None:
    await stage.warm_up()
    stage.faults.add(PRODUCE, error=Code.CORRUPT_MESSAGE, count=2)
    await stage.delivered(await stage.send(6))


@scenario("B16")
async def permission_to_write_is_revoked_and_restored(stage: Stage) -> None:
    await stage.warm_up()
    denial = stage.cluster.authorizer.deny(Operation.WRITE, topic=TOPIC)
    assert await stage.told(await stage.send(2)) == [Told.NOT_PERSISTED] * 2
    stage.cluster.authorizer.withdraw(denial)
    await stage.delivered(await stage.send(2))


@scenario("B17", partitions=20)
async def one_partition_of_twenty_fails(stage: Stage) -> None:
    await stage.warm_up(20)
    stage.faults.add(PRODUCE, error=Code.POLICY_VIOLATION, topic=TOPIC, partition=7)
    records = [(await stage.send(partition=index))[0] for index in range(20)]
    told = await stage.told(records)
    assert [index for index, one in enumerate(told) if one is not Told.ACKNOWLEDGED] == [7]
    await stage.delivered(await stage.send(3, partition=7))


@scenario("B19", "S16")
async def the_broker_forgets_the_producer(stage: Stage) -> None:
    await stage.warm_up()
    for _ in range(3):
        stage.partition().log.producers.clear()
        await stage.delivered(await stage.send(3))
    stage.faults.add(PRODUCE, error=Code.UNKNOWN_PRODUCER_ID)
    await stage.delivered(await stage.send(3))


@scenario("B20")
async def retention_deletes_everything_that_the_producer_wrote(stage: Stage) -> None:
    await stage.delivered(await stage.send(5))
    stage.partition().log.delete_before(stage.partition().log.end_offset)
    await stage.delivered(await stage.send(5))


@scenario("S1")
async def the_first_of_five_in_flight_is_refused(stage: Stage) -> None:
    await stage.warm_up()
    for code in (Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_ENOUGH_REPLICAS, Code.COORDINATOR_NOT_AVAILABLE):
        stage.faults.add(PRODUCE, error=code)
        await stage.delivered(await stage.send(10))


@scenario("S2", "S4")
async def an_answer_in_the_middle_is_lost_and_the_retry_is_a_duplicate(stage: Stage) -> None:
    await stage.warm_up()
    for skip in range(5):
        stage.faults.add(PRODUCE, drop_after_append=True, skip=skip)
        await stage.delivered(await stage.send(7))
    assert len(stage.cluster.records(TOPIC)) == len(stage.history.sent)


@scenario("S3")
async def the_first_of_five_fails_for_good(stage: Stage) -> None:
    await stage.warm_up()
    for code in (Code.POLICY_VIOLATION, Code.INVALID_TIMESTAMP):
        stage.faults.add(PRODUCE, error=code)
        first, *others = await stage.send(6)
        assert await stage.told([first]) == [Told.NOT_PERSISTED]
        await stage.delivered(others)


@scenario("S5", "S6", "S7", "S8", request_timeout_ms=500, delivery_timeout_ms=600)
async def batches_in_flight_expire_and_the_next_ones_arrive(stage: Stage) -> None:
    await stage.warm_up()
    for delay in (0.55, 0.6, 0.601, 2.0):
        stage.faults.add(PRODUCE, delay=delay)
        records = await stage.send(4)
        told = await stage.told(records)
        assert Told.NOTHING not in told
        await asyncio.sleep(4)
        await stage.delivered(await stage.send(2))


@scenario("S9", request_timeout_ms=300, delivery_timeout_ms=400)
async def the_bytes_of_an_expired_batch_do_not_change(stage: Stage) -> None:
    await stage.warm_up()
    stage.cluster.freeze_broker(0)
    records = await stage.send(4, size=50_000)
    assert Told.ACKNOWLEDGED not in await stage.told(records)
    more = await stage.send(4, size=50_000)
    stage.cluster.thaw_broker(0)
    await stage.told(more)
    await asyncio.sleep(1)


@scenario("S10", "S11", partitions=3)
async def an_epoch_ends_while_other_partitions_have_batches_in_flight(stage: Stage) -> None:
    await stage.warm_up(3)
    stage.faults.add(PRODUCE, error=Code.POLICY_VIOLATION, topic=TOPIC, partition=0)
    stage.faults.add(PRODUCE, delay=0.2, topic=TOPIC, partition=1)
    records = []
    for _ in range(6):
        for index in range(3):
            records += await stage.send(partition=index)
        await asyncio.sleep(stage.random.uniform(0, 0.05))
    told = await stage.told(records)
    assert told.count(Told.ACKNOWLEDGED) == 17


@scenario("S12")
async def sequences_wrap_within_a_batch_and_under_faults(stage: Stage) -> None:
    await stage.warm_up()
    ((queue,),) = stage.producer._accumulator._queues.values()
    assert queue.sequence is not None
    # As if that many records had been sent; the broker forgets the producer, so it accepts the new numbers.
    queue.sequence.next_sequence = LAST_SEQUENCE - 5
    stage.partition().log.producers.clear()
    await stage.delivered(await stage.send())
    stage.faults.add(PRODUCE, drop_after_append=True, skip=2, count=3)
    await stage.delivered(await stage.send(12))
    stage.faults.add(PRODUCE, error=Code.NOT_LEADER_OR_FOLLOWER)
    await stage.delivered(await stage.send(5))


@scenario("S13")
async def the_epochs_of_a_producer_id_are_used_up(stage: Stage) -> None:
    await stage.warm_up()
    idempotence = stage.producer._sender._idempotence
    assert idempotence.identity is not None
    idempotence.identity = idempotence.identity._replace(epoch=LAST_EPOCH)
    await stage.delivered(await stage.send(2))
    stage.faults.add(PRODUCE, error=Code.POLICY_VIOLATION)
    first, *others = await stage.send(4)
    assert await stage.told([first]) == [Told.NOT_PERSISTED]
    await stage.delivered(others)
    assert len({batch.header.producer_id for batch in stage.cluster.batches(TOPIC, 0)}) == 2


@scenario("S14", delivery_timeout_ms=90_000, starts=False)
async def no_producer_id_for_a_minute(stage: Stage) -> None:
    fault = stage.faults.add(ApiKey.INIT_PRODUCER_ID, error=Code.COORDINATOR_LOAD_IN_PROGRESS, count=10_000)
    await stage.producer.start()
    records = await stage.send(5)
    await asyncio.sleep(60)
    assert fault.hits < 400
    stage.faults.clear()
    await stage.delivered(records)


@scenario("A9", request_timeout_ms=500)
async def close_without_patience_while_everything_is_retried(stage: Stage) -> None:
    await stage.warm_up()
    stage.faults.add(PRODUCE, drop_after_append=True, count=1000)
    records = await stage.send(20)
    await asyncio.sleep(stage.random.uniform(0, 1))
    began = stage.loop.time()
    await stage.producer.close(timeout=0)
    assert stage.loop.time() - began < 0.1
    assert Told.NOTHING not in await stage.told(records)
    await stage.producer.close()


@scenario("Z8", "Z9", brokers=3, partitions=3, buffer_memory=1_000_000)
async def one_broker_of_three_is_dead_and_the_others_work(stage: Stage) -> None:
    await stage.warm_up(3)
    stage.cluster.freeze_broker(0)
    await stage.send(5, partition=0)
    began = stage.loop.time()
    for _ in range(20):
        for index in (1, 2):
            await stage.delivered(await stage.send(2, partition=index))
    assert stage.loop.time() - began < 1
    stage.cluster.thaw_broker(0)


@scenario("Z1", batch_size=16_384, max_request_size=20_000)
async def records_of_the_largest_size_and_one_byte_more(stage: Stage) -> None:
    await stage.warm_up()
    (largest,) = await stage.send(size=19_900)
    (larger,) = await stage.send(size=20_001)
    await stage.delivered([largest])
    assert (larger.told, larger.buffered_at) == (Told.NOT_PERSISTED, None)
    await stage.delivered(await stage.send(3))


@scenario("Z3")
async def empty_keys_and_ten_thousand_headers(stage: Stage) -> None:
    headers = [(f"h{number}", b"" if number % 2 else None) for number in range(10_000)]
    for more in ({"key": b""}, {"key": None}, {"headers": headers}, {"headers": []}):
        await stage.delivered(await stage.send(2, **more))
    assert [(name, value) for name, value in stage.cluster.records(TOPIC)[4].headers] == headers


@scenario("Z5", request_timeout_ms=500)
async def the_brokers_wall_clock_jumps(stage: Stage) -> None:
    await stage.warm_up()
    for seconds in (3600.0, -3600.0):
        stage.world.skip_wall_time(seconds)
        await stage.delivered(await stage.send(3))


@scenario("A3", max_block_ms=2000)
async def a_send_that_waits_for_metadata_is_cancelled(stage: Stage) -> None:
    stage.faults.add(ApiKey.METADATA, delay=1.0, count=100)
    sending = asyncio.ensure_future(stage.producer.send("elsewhere", b"-1"))
    await asyncio.sleep(0.1)
    sending.cancel()
    await asyncio.wait([sending])
    assert stage.producer.metrics().records_buffered == 0
