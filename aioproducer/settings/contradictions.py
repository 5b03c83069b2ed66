"""Contradictions between settings: two explicit ones are an error; a default yields, with a note.

Each function settles one group; `settle` calls them in order. The origin of a default names what it yields to."""

from __future__ import annotations

from aioproducer.errors import ConfigError
from aioproducer.protocol.compression import Codec, check_level
from aioproducer.settings.draft import Draft
from aioproducer.settings.security import settle_security

MOST_IN_FLIGHT_WITH_IDEMPOTENCE = 5
"""The number of batches a broker remembers per producer (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)."""
_ROUNDING = 1e-9
"""Seconds; sums of durations that are equal in milliseconds are not always equal in seconds."""
_DELIVERY_TIMEOUT = 120.0


def settle(draft: Draft) -> int:
    """Settle everything, and return how many requests of a partition may be in flight.

    Raises:
        ConfigError: settings contradict each other.
    """
    draft.take_over("max_batch_size", "batch_size")
    _settle_idempotence(draft)
    _settle_timeouts(draft)
    _settle_backoffs(draft)
    _settle_compression(draft)
    _settle_partitioner(draft)
    _look_at_sizes(draft)
    settle_security(draft)
    return _in_flight_per_partition(draft)


def _settle_idempotence(draft: Draft) -> None:
    acks = draft["acks"]
    if draft["transactional_id"] is not None and (acks != -1 or draft["enable_idempotence"] is False):
        culprit = "acks" if acks != -1 else "enable_idempotence"
        raise ConfigError(
            f"{draft.said('transactional_id')} needs acks='all' and enable_idempotence=True, but "
            f"{draft.said(culprit)}; leave {culprit} out, or transactional_id",
            setting="transactional_id",
            value=draft["transactional_id"],
        )
    if draft["enable_idempotence"] is None:
        if acks == -1:
            draft.default("enable_idempotence", True)
        else:
            draft.derive("enable_idempotence", False, draft.said("acks"))
            draft.notes.append(
                f"{draft.said('acks')} turns enable_idempotence off: retries may duplicate records "
                "(enable_idempotence=False says so without this warning)"
            )
    elif draft["enable_idempotence"] and acks != -1:
        raise draft.refused(
            "acks",
            f"contradicts {draft.said('enable_idempotence')}, which needs acks='all'; "
            "set enable_idempotence=False to give up protection against duplicates",
        )
    _look_at_what_needs_idempotence(draft)
    in_flight = "max_in_flight_requests_per_connection"
    if draft["enable_idempotence"] and draft[in_flight] > MOST_IN_FLIGHT_WITH_IDEMPOTENCE:
        raise draft.refused(
            in_flight,
            f"contradicts {draft.said('enable_idempotence')}: the broker remembers "
            f"{MOST_IN_FLIGHT_WITH_IDEMPOTENCE} batches per producer; use {MOST_IN_FLIGHT_WITH_IDEMPOTENCE} or less",
        )


def _look_at_what_needs_idempotence(draft: Draft) -> None:
    """Refuse settings that only sequence numbers can keep."""
    for name in ("enable_gapless_order", "enable_endless_retries"):
        if draft[name] and not draft["enable_idempotence"]:
            culprit = "enable_idempotence" if draft.is_given("enable_idempotence") else "acks"
            raise draft.refused(name, f"needs enable_idempotence=True, but {draft.said(culprit)}; keep one")
    if draft["enable_endless_retries"] and draft["transactional_id"] is not None:
        raise draft.refused(
            "enable_endless_retries",
            f"contradicts {draft.said('transactional_id')}: the broker ends a transaction after "
            "transaction_timeout_ms; leave it out",
        )


def _in_flight_per_partition(draft: Draft) -> int:
    name = "max_in_flight_requests_per_connection"
    if draft["enable_idempotence"]:
        return int(draft[name])
    if not draft.is_given(name):
        # Without sequence numbers a second batch could overtake a first one that has to be sent again.
        return 1
    if draft[name] > 1:
        draft.notes.append(
            f"{draft.said(name)} without idempotence: retries may reorder records (1 keeps their order)"
        )
    return int(draft[name])


def _settle_timeouts(draft: Draft) -> None:
    if draft["transactional_id"] is not None and draft["max_block_ms"] == 0:
        raise draft.refused(
            "max_block_ms", f"leaves the calls of {draft.said('transactional_id')} no time; raise it"
        )
    needed = draft["linger_ms"] + draft["request_timeout_ms"]
    if draft["delivery_timeout_ms"] is None:
        _derive_delivery_timeout(draft, needed)
    elif draft["delivery_timeout_ms"] < needed - _ROUNDING:
        raise draft.refused(
            "delivery_timeout_ms",
            f"is shorter than {draft.said('linger_ms')} + {draft.said('request_timeout_ms')}; "
            "raise it or lower request_timeout_ms",
        )
    else:
        _compare_with_the_transaction(draft)


def _derive_delivery_timeout(draft: Draft, needed: float) -> None:
    """Give a delivery time-out that was left out its value: a record needs no more time than its transaction has."""
    value = max(_DELIVERY_TIMEOUT, needed)
    if draft["transactional_id"] is not None and draft["transaction_timeout_ms"] < value:
        value = draft["transaction_timeout_ms"]
        draft.derive("delivery_timeout_ms", value, draft.said("transaction_timeout_ms"))
    elif value == _DELIVERY_TIMEOUT:
        draft.default("delivery_timeout_ms", value)
    else:
        causes = [name for name in ("linger_ms", "request_timeout_ms") if draft.is_given(name)]
        because = " and ".join(draft.said(name) for name in causes)
        draft.derive("delivery_timeout_ms", value, because)
        draft.notes.append(f"{because} raises delivery_timeout_ms to {draft.shown('delivery_timeout_ms')}")


def _compare_with_the_transaction(draft: Draft) -> None:
    """Warn of two explicit time-outs of which the shorter one makes the longer one useless."""
    if draft["transactional_id"] is None or not draft.is_given("transaction_timeout_ms"):
        return
    if draft["delivery_timeout_ms"] > draft["transaction_timeout_ms"] + _ROUNDING:
        draft.notes.append(
            f"{draft.said('delivery_timeout_ms')} is longer than {draft.said('transaction_timeout_ms')}: the broker "
            "may abort the transaction while its records are still being sent; lower delivery_timeout_ms or raise "
            "transaction_timeout_ms"
        )


def _settle_backoffs(draft: Draft) -> None:
    for first, last in (
        ("retry_backoff_ms", "retry_backoff_max_ms"),
        ("reconnect_backoff_ms", "reconnect_backoff_max_ms"),
        ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"),
        ("sasl_login_retry_backoff_ms", "sasl_login_retry_backoff_max_ms"),
    ):
        if draft[first] <= draft[last]:
            continue
        if draft.is_given(first) and draft.is_given(last):
            raise draft.refused(first, f"is more than {draft.said(last)}; lower it or raise {last}")
        cause, yields = (first, last) if draft.is_given(first) else (last, first)
        draft.derive(yields, draft[cause], draft.said(cause))
        draft.notes.append(f"{draft.said(cause)} makes {yields} the same")


def _settle_compression(draft: Draft) -> None:
    codec: Codec = draft["compression_type"]
    for other in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        name = f"compression_{other.name.lower()}_level"
        if not draft.is_given(name):
            continue
        if other is codec:
            draft.take_over(name, "compression_level")
        else:
            _check_level(draft, name, other)
            draft.notes.append(f"{draft.said(name)} has no use with {draft.said('compression_type')}")
    _check_level(draft, "compression_level", codec)


def _check_level(draft: Draft, name: str, codec: Codec) -> None:
    try:
        check_level(codec, draft[name])
    except ConfigError as error:
        message = error.message.replace("compression_level=", f"{name}=", 1)
        raise ConfigError(message, setting=name, value=error.value) from None


def _settle_partitioner(draft: Draft) -> None:
    if not draft["partitioner_ignore_keys"]:
        return
    if draft.is_given("partitioner") and draft["partitioner"] != "random":
        raise draft.refused("partitioner_ignore_keys", f"contradicts {draft.said('partitioner')}; keep one")
    draft.derive("partitioner", "random", draft.said("partitioner_ignore_keys"))


def _look_at_sizes(draft: Draft) -> None:
    if draft.is_given("batch_size") and draft["batch_size"] > draft["max_request_size"]:
        draft.notes.append(
            f"{draft.said('batch_size')} is more than {draft.said('max_request_size')}, where batches end"
        )
