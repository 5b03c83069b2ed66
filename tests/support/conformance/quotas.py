"""Sets a quota for a client id with the request that Kafka's own tools send (KIP-546)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.conformance.client import Client

PRODUCER_BYTE_RATE = "producer_byte_rate"
ALTER_CLIENT_QUOTAS = 49


async def set_quota(client: Client, client_id: str, quota: str, value: float) -> None:
    """Send AlterClientQuotas, version 0."""
    body = b"".join(
        (
            _count(1),
            _count(1) + _string("client-id") + _string(client_id),
            _count(1) + _string(quota) + struct.pack(">d", value) + b"\x00",
            b"\x00",  # validate_only is false
        )
    )
    correlation_id = client.send_body(ALTER_CLIENT_QUOTAS, 0, body)
    frame = await client.frame()
    answered, _, entries, error_code = struct.unpack_from(">iiih", frame)
    assert (answered, entries, error_code) == (correlation_id, 1, 0)


def _count(items: int) -> bytes:
    return struct.pack(">i", items)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded
