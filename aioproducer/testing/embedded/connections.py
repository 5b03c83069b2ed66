"""Serves the connections of a broker: reads each request, calls its handler, and sends the response.

A request is read only after the response to the previous one has been sent, so pipelined requests are served in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Sequence

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol.api import (
    ApiKey,
    RequestHeader,
    decode_request,
    decode_request_header,
    encode_response,
)
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.frame import PREFIX_SIZE, decode_size
from aioproducer.protocol.messages import ApiVersionsResponse
from aioproducer.protocol.schema import Message
from aioproducer.testing.embedded import fault_effects
from aioproducer.testing.embedded.broker import CloseConnection, EmbeddedBroker
from aioproducer.testing.embedded.broker_security import Session
from aioproducer.testing.embedded.cluster_state import ClusterState
from aioproducer.testing.embedded.faults import Fault, ImpossibleFaultError
from aioproducer.testing.embedded.handlers import HANDLERS, targets
from aioproducer.testing.embedded.metadata_handlers import refused_api_versions
from aioproducer.testing.embedded.quotas import Timed
from aioproducer.testing.embedded.releases import Release
from aioproducer.testing.embedded.request_context import RequestContext
from aioproducer.testing.embedded.tls_streams import Reader, Writer, secured

logger = logging.getLogger(__name__)

SOCKET_REQUEST_MAX_BYTES = 100 * 1024 * 1024
"""The maximum size of a request in bytes: Kafka's default."""

_ANOTHERS = 1_000_000  # added to a correlation id to get one that no recent request has used


async def serve(cluster: ClusterState, broker: EmbeddedBroker, reader: Reader, writer: Writer) -> None:
    """Serve one connection until it is closed."""
    try:
        security = cluster.security
        if security is not None and security.tls is not None:
            # The handshake is done by this task, not by the server, so that a connection can be cut even during the
            # handshake.
            await broker.thawed()
            assert isinstance(reader, asyncio.StreamReader)
            assert isinstance(writer, asyncio.StreamWriter)
            reader, writer = await secured(security.tls, reader, writer)
        session = security.begin(writer.get_extra_info("peercert")) if security is not None else Session()
        while True:
            await _serve_one(cluster, broker, session, reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
        pass  # The client has closed the connection, or TLS has failed.
    except CloseConnection as reason:
        logger.debug("broker %d is closing a connection: %s", broker.node_id, reason)
    except (ProtocolError, UnsupportedVersionError) as error:
        logger.warning("broker %d is closing a connection: %s", broker.node_id, error)
    except ImpossibleFaultError as error:
        logger.error("broker %d is closing a connection: %s", broker.node_id, error)
        cluster.failures.append(error)
    except Exception as error:
        logger.exception(
            "broker %d is closing a connection because of a bug in the embedded broker", broker.node_id
        )
        cluster.failures.append(error)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _serve_one(
    cluster: ClusterState, broker: EmbeddedBroker, session: Session, reader: Reader, writer: Writer
) -> None:
    """Read a request, serve it and answer it. Scripted faults are applied by this function or by the handler."""
    size = decode_size(await reader.readexactly(PREFIX_SIZE), SOCKET_REQUEST_MAX_BYTES)
    frame = await reader.readexactly(size)
    await broker.thawed()
    header, message = _decode(frame, broker.release)
    del frame  # The message keeps these bytes alive until its records are appended.
    if message is None:
        refusal = refused_api_versions(ErrorCode.UNSUPPORTED_VERSION, broker.release.versions)
        await fault_effects.write(writer, encode_response(refusal, 0, header.correlation_id), ())
        return
    seen = cluster.note_request(broker.node_id, header, message)
    if cluster.security is not None:
        cluster.security.check(session, header.api_key)
    meant = targets(cluster, message)
    faults = cluster.faults.take(ApiKey(header.api_key), broker.node_id, meant)
    fault_effects.strike(cluster, broker.node_id, faults, meant, late=False)
    await broker.thawed()
    if any(fault.drop_before for fault in faults):
        fault_effects.forget_records(message)
        raise CloseConnection("a scripted fault closes the connection before the request is served")
    await fault_effects.hold_back(faults)
    clock = asyncio.get_running_loop().time
    handling = Timed(
        HANDLERS[header.api_key](RequestContext(cluster, broker.node_id, seen, faults, session), message),
        clock,
    )
    response = await handling
    fault_effects.strike(cluster, broker.node_id, faults, meant, late=True)
    await fault_effects.delay(faults)
    await broker.thawed()
    throttle = cluster.quotas.throttle(
        broker.node_id,
        header.client_id or "",
        size=size if header.api_key == ApiKey.PRODUCE else 0,
        seconds=handling.seconds + sum(fault.delay for fault in faults),
        now=clock(),
    )
    throttle_ms = max(round(throttle * 1000), *(fault.throttle_ms for fault in faults), 0)
    if response is not None:
        await _write(writer, header, response, faults, throttle_ms)
    if throttle_ms:
        # KIP-219: the response is sent immediately; the broker then ignores the connection for the throttle time.
        await asyncio.sleep(throttle_ms / 1000)


def _decode(frame: bytes, release: Release) -> tuple[RequestHeader, Message | None]:
    """Decode a request. The message is None for an ApiVersions request that is too new for this release."""
    header = decode_request_header(frame)
    served = release.versions.get(header.api_key)  # type: ignore[call-overload]  # may not be an ApiKey
    if served is not None and served.min <= header.version <= served.max:
        return decode_request(frame, ignore_rest=True)
    if header.api_key == ApiKey.API_VERSIONS and release.refuses_newer_api_versions:
        return header, None
    raise UnsupportedVersionError(
        f"API key {header.api_key} version {header.version} is not supported (supported: {served or 'none'})"
    )


async def _write(
    writer: Writer,
    header: RequestHeader,
    response: Message,
    faults: Sequence[Fault],
    throttle_ms: int,
) -> None:
    if throttle_ms and hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = throttle_ms
    wrong_id = _ANOTHERS if any(fault.wrong_correlation_id for fault in faults) else 0
    version = header.version
    if isinstance(response, ApiVersionsResponse) and response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        version = 0  # KIP-511: every client must be able to read this error response.
    segments = encode_response(response, version, header.correlation_id + wrong_id)
    await fault_effects.write(writer, segments, faults)
