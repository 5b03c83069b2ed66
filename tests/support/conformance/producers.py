"""Cases about the requests that a producer sends before it writes: InitProducerId and FindCoordinator."""

from __future__ import annotations

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import FindCoordinatorRequest
from tests.support.conformance.client import Client
from tests.support.conformance.suite import case

# InitProducerId


@case()
async def every_producer_id_is_new(client: Client) -> None:
    found = []
    for version in (0, 1, 2, 3, 4, 5, 5):
        response = await client.init_producer_id(version=version)
        assert (response.error_code, response.producer_epoch) == (ErrorCode.NONE, 0)
        found.append(response.producer_id)
    assert len(set(found)) == len(found)
    assert min(found) >= 0


@case()
async def a_producer_id_and_epoch_without_a_transactional_id_are_ignored(client: Client) -> None:
    first = await client.init_producer_id()
    second = await client.init_producer_id(producer_id=first.producer_id, epoch=first.producer_epoch)
    assert (second.error_code, second.producer_epoch) == (ErrorCode.NONE, 0)
    assert second.producer_id != first.producer_id


@case()
async def a_producer_id_without_an_epoch_is_an_invalid_request(client: Client) -> None:
    for producer_id, epoch in ((5, -1), (-1, 3)):
        response = await client.init_producer_id(producer_id=producer_id, epoch=epoch)
        assert (response.error_code, response.producer_id, response.producer_epoch) == (
            ErrorCode.INVALID_REQUEST,
            -1,
            -1,
        )


@case()
async def an_empty_transactional_id_is_an_invalid_request(client: Client) -> None:
    response = await client.init_producer_id("")
    assert (response.error_code, response.producer_id) == (ErrorCode.INVALID_REQUEST, -1)


# FindCoordinator


@case()
async def the_only_broker_coordinates_all_groups(client: Client) -> None:
    for version in range(7):
        response = await find(client, version, "anybody")
        while response[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            response = await find(client, version, "anybody")  # the first request creates the topic
        assert response == (ErrorCode.NONE, f"{client.servers}")


@case()
async def coordinators_of_several_keys(client: Client) -> None:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["b", "a"])
    response = await client.ask(request, 4)
    assert sorted(found.key for found in response.coordinators) == ["a", "b"]


@case()
async def a_request_without_keys_finds_no_coordinators(client: Client) -> None:
    assert (await client.ask(FindCoordinatorRequest(key_type=0), 4)).coordinators == []


@case()
async def an_unknown_type_of_key_is_an_invalid_request(client: Client) -> None:
    assert (await find(client, 4, "anybody", key_type=9))[0] == ErrorCode.INVALID_REQUEST


async def find(client: Client, version: int, key: str, key_type: int = 0) -> tuple[int, str]:
    """Find the coordinator of a key; return the error code and the address."""
    if version < 4:
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        response = await client.ask(request, version)
        return response.error_code, f"{response.host}:{response.port}"
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    (found,) = (await client.ask(request, version)).coordinators
    assert found.key == key
    return found.error_code, f"{found.host}:{found.port}"
