"""Cases about the partitions of a Produce request, its acks, and the structure of its response."""

from __future__ import annotations

import uuid

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import FindCoordinatorRequest, ProduceRequest
from tests.support.conformance.client import Client, appended, outcome, refused
from tests.support.conformance.crafted import flipped
from tests.support.conformance.suite import case
from tests.support.raw_client import batch_of, produce_request

BEFORE_TOPIC_IDS = 12
UNKNOWN = refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def newest_by_name(client: Client) -> int:
    """The highest version with topic names."""
    return min(client.newest_produce, BEFORE_TOPIC_IDS)


@case(2)
async def every_version_appends_and_answers(client: Client) -> None:
    for number, version in enumerate(range(3, client.newest_produce + 1)):
        batches = [(0, batch_of(b"a", b"b")), (1, batch_of(b"c"))]
        response = await client.ask(client.produce_request(batches), version)
        (topic,) = response.responses
        assert topic.topic_id == client.topic_id if version >= 13 else topic.name == client.topic
        assert sorted(
            (part.index, part.error_code, part.base_offset, part.log_append_time_ms, part.log_start_offset)
            for part in topic.partition_responses
        ) == [
            (0, 0, 2 * number, -1, 0 if version >= 5 else -1),
            (1, 0, number, -1, 0 if version >= 5 else -1),
        ]
        assert (response.throttle_time_ms, response.node_endpoints) == (0, [])


@case()
async def errors_of_a_whole_batch_have_no_text(client: Client) -> None:
    for version in range(3, client.newest_produce + 1):
        answer = await client.produce(flipped(batch_of(b"value")), version=version)
        assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
        assert (answer.error_message, answer.record_errors) == (None, [])


@case(2)
async def an_unknown_partition_is_rejected(client: Client) -> None:
    for partition in (2, 1000, -1, 2**31 - 1):
        assert outcome(await client.produce(batch_of(b"x"), partition)) == UNKNOWN


@case()
async def produce_creates_no_topic(client: Client) -> None:
    name = f"{client.topic}-none"
    for _ in range(2):
        response = await client.ask(produce_request({(name, 0): batch_of(b"x")}), newest_by_name(client))
        (topic,) = response.responses
        assert topic.name == name
        assert [outcome(answer) for answer in topic.partition_responses] == [UNKNOWN]


@case()
async def a_topic_with_an_invalid_name_is_unknown(client: Client) -> None:
    for name in ("", "no/name", ".", "x" * 300):
        response = await client.ask(produce_request({(name, 0): batch_of(b"x")}), newest_by_name(client))
        assert outcome(response.responses[0].partition_responses[0]) == UNKNOWN


@case(2)
async def one_rejected_partition_does_not_affect_the_others(client: Client) -> None:
    request = client.produce_request(
        [(0, flipped(batch_of(b"value"))), (1, batch_of(b"good")), (2, batch_of(b"nowhere"))]
    )
    answers = await client.answers(request)
    assert {index: outcome(answer) for index, answer in answers.items()} == {
        0: refused(ErrorCode.CORRUPT_MESSAGE),
        1: appended(0),
        2: UNKNOWN,
    }
    assert [await client.end_offset(partition) for partition in (0, 1)] == [0, 1]


@case(2)
async def one_malformed_partition_does_not_affect_the_others(client: Client) -> None:
    answers = await client.answers(client.produce_request([(0, b""), (1, batch_of(b"good"))]))
    assert {index: outcome(answer) for index, answer in answers.items()} == {
        0: refused(ErrorCode.INVALID_RECORD),
        1: appended(0),
    }


@case()
async def one_unknown_topic_does_not_affect_the_others(client: Client) -> None:
    request = produce_request(
        {(client.topic, 0): batch_of(b"x"), ("nothing", 0): batch_of(b"x"), ("nothing", 1): batch_of(b"x")}
    )
    response = await client.ask(request, newest_by_name(client))
    found = {
        topic.name: {part.index: outcome(part) for part in topic.partition_responses}
        for topic in response.responses
    }
    assert found == {client.topic: {0: appended(0)}, "nothing": {0: UNKNOWN, 1: UNKNOWN}}


@case()
async def a_partition_twice_in_a_request(client: Client) -> None:
    response = await client.ask(
        client.produce_request([(0, batch_of(b"a")), (0, batch_of(b"b", b"c"))]), client.newest_produce
    )
    answers = [outcome(part) for topic in response.responses for part in topic.partition_responses]
    assert answers == [appended(0)]
    assert await client.end_offset() == 2


@case(2)
async def a_topic_twice_in_a_request(client: Client) -> None:
    request = client.produce_request([(0, batch_of(b"a"))])
    request.topic_data += client.produce_request([(1, batch_of(b"b"))]).topic_data
    response = await client.ask(request, client.newest_produce)
    (topic,) = response.responses
    assert sorted((part.index, outcome(part)) for part in topic.partition_responses) == [
        (0, appended(0)),
        (1, appended(0)),
    ]


@case()
async def a_request_without_topics_has_an_empty_answer(client: Client) -> None:
    for acks in (-1, 1):
        response = await client.ask(ProduceRequest(acks=acks, timeout_ms=1000), client.newest_produce)
        assert response.responses == []


@case()
async def a_topic_without_partitions_is_left_out(client: Client) -> None:
    response = await client.ask(client.produce_request([]), client.newest_produce)
    assert response.responses == []


# Topic ids (KIP-516). Kafka 3.9 supports only names in Produce.


@case()
async def an_unknown_topic_id_is_rejected(client: Client) -> None:
    request = client.produce_request([(0, batch_of(b"x"))])
    request.topic_data[0].topic_id = uuid.UUID(int=12345)
    if client.newest_produce < 13:
        client.send(request, 13)
        assert await client.is_closed()
        return
    response = await client.ask(request, 13)
    (topic,) = response.responses
    assert topic.topic_id == uuid.UUID(int=12345)
    assert [outcome(part) for part in topic.partition_responses] == [refused(ErrorCode.UNKNOWN_TOPIC_ID)]


@case()
async def the_nil_topic_id_is_unknown(client: Client) -> None:
    request = client.produce_request([(0, batch_of(b"x"))])
    request.topic_data[0].topic_id = uuid.UUID(int=0)
    if client.newest_produce < 13:
        client.send(request, 13)
        assert await client.is_closed()
        return
    response = await client.ask(request, 13)
    answers = [outcome(part) for topic in response.responses for part in topic.partition_responses]
    assert answers == [refused(ErrorCode.UNKNOWN_TOPIC_ID)]


# Acks


@case()
async def acks_1_and_all_are_answered(client: Client) -> None:
    for number, acks in enumerate((1, -1)):
        assert outcome(await client.produce(batch_of(b"x"), acks=acks)) == appended(number)


@case()
async def other_acks_are_rejected(client: Client) -> None:
    for acks in (2, -2, 32_767, -32_768):
        answer = await client.produce(batch_of(b"x"), acks=acks)
        assert outcome(answer) == refused(ErrorCode.INVALID_REQUIRED_ACKS)
    assert await client.end_offset() == 0


@case()
async def other_acks_do_not_hide_an_unknown_partition(client: Client) -> None:
    assert outcome(await client.produce(batch_of(b"x"), 7, acks=2)) == UNKNOWN


@case()
async def other_acks_do_not_hide_a_malformed_batch(client: Client) -> None:
    assert outcome(await client.produce(b"", acks=2)) == refused(ErrorCode.INVALID_RECORD)
    assert outcome(await client.produce(flipped(batch_of(b"value")), acks=2)) == refused(
        ErrorCode.INVALID_REQUIRED_ACKS
    )


@case()
async def acks_0_is_not_answered(client: Client) -> None:
    for _ in range(3):
        client.send(client.produce_request([(0, batch_of(b"x"))], acks=0), client.newest_produce)
    assert outcome(await client.produce(batch_of(b"y"))) == appended(3)


@case()
async def acks_0_closes_the_connection_on_an_unknown_partition(client: Client) -> None:
    client.send(client.produce_request([(7, batch_of(b"x"))], acks=0), client.newest_produce)
    assert await client.is_closed()


@case(2)
async def acks_0_closes_the_connection_on_a_rejected_batch_and_keeps_the_others(client: Client) -> None:
    batches = [(0, batch_of(b"good")), (1, flipped(batch_of(b"value")))]
    client.send(client.produce_request(batches, acks=0), client.newest_produce)
    assert await client.is_closed()
    async with client.another() as other:
        assert await other.end_offset(0) == 1


@case()
async def a_duplicate_with_acks_0_is_not_an_error(client: Client) -> None:
    batch = batch_of(b"x", sequence=0)
    for _ in range(2):
        client.send(client.produce_request([(0, batch)], acks=0), client.newest_produce)
    assert await client.end_offset() == 1
    assert await client.still_answers()


@case(min_insync_replicas=2)
async def min_insync_replicas_is_limited_by_the_number_of_replicas(client: Client) -> None:
    for number, acks in enumerate((-1, 1)):
        assert outcome(await client.produce(batch_of(b"x"), acks=acks)) == appended(number)


@case()
async def a_timeout_that_ends_at_once_does_not_matter_without_followers(client: Client) -> None:
    for number, timeout_ms in enumerate((0, -1, 1)):
        assert outcome(await client.produce(batch_of(b"x"), timeout_ms=timeout_ms)) == appended(number)


# Internal topics


@case()
async def an_internal_topic_rejects_records_of_clients(client: Client) -> None:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["anybody"])
    while (await client.ask(request, 4)).coordinators[0].error_code:
        pass  # the first request makes the broker create the topic
    request = produce_request({("__consumer_offsets", 0): batch_of(b"x")})
    response = await client.ask(request, newest_by_name(client))
    answer = response.responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (await client.describe("__consumer_offsets")).topics[0].is_internal


@case()
async def the_log_of_transactions_also_rejects_records_of_clients(client: Client) -> None:
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=["anybody"])
    while (await client.ask(request, 4)).coordinators[0].error_code:
        pass  # the first request makes the broker create the topic
    request = produce_request({("__transaction_state", 0): batch_of(b"x")})
    response = await client.ask(request, newest_by_name(client))
    answer = response.responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (await client.describe("__transaction_state")).topics[0].is_internal
