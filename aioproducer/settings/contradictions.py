"""Contradictions between settings. Two explicit settings that contradict each other are an error; a default yields,
with a note.

Each function settles one group; `settle` calls them in order. The origin of a default that yields names the setting it
yields to."""

from __future__ import annotations

from aioproducer.errors import ConfigError
from aioproducer.protocol.compression import Codec, check_level
from aioproducer.settings.security import settle_security
from aioproducer.settings.unsettled import UnsettledSettings

MOST_IN_FLIGHT_WITH_IDEMPOTENCE = 5
"""The number of batches a broker remembers per producer (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)."""
_ROUNDING = 1e-9
"""Seconds; sums of durations that are equal in milliseconds are not always equal in seconds."""
_DELIVERY_TIMEOUT = 120.0


def settle(unsettled: UnsettledSettings) -> int:
    """Settle all groups, and return how many requests of one partition may be in flight.

    Raises:
        ConfigError: settings contradict each other.
    """
    unsettled.take_over("max_batch_size", "batch_size")
    _settle_idempotence(unsettled)
    _settle_timeouts(unsettled)
    _settle_backoffs(unsettled)
    _settle_compression(unsettled)
    _settle_partitioner(unsettled)
    _look_at_sizes(unsettled)
    settle_security(unsettled)
    return _in_flight_per_partition(unsettled)


def _settle_idempotence(unsettled: UnsettledSettings) -> None:
    acks = unsettled["acks"]
    if unsettled["transactional_id"] is not None and (acks != -1 or unsettled["enable_idempotence"] is False):
        culprit = "acks" if acks != -1 else "enable_idempotence"
        raise ConfigError(
            f"{unsettled.said('transactional_id')} needs acks='all' and enable_idempotence=True, but "
            f"{unsettled.said(culprit)}; leave {culprit} out, or transactional_id",
            setting="transactional_id",
            value=unsettled["transactional_id"],
        )
    if unsettled["enable_idempotence"] is None:
        if acks == -1:
            unsettled.default("enable_idempotence", True)
        else:
            unsettled.derive("enable_idempotence", False, unsettled.said("acks"))
            unsettled.notes.append(
                f"{unsettled.said('acks')} turns enable_idempotence off: retries may duplicate records "
                "(set enable_idempotence=False to avoid this warning)"
            )
    elif unsettled["enable_idempotence"] and acks != -1:
        raise unsettled.refused(
            "acks",
            f"contradicts {unsettled.said('enable_idempotence')}, which needs acks='all'; "
            "set enable_idempotence=False to give up protection against duplicates",
        )
    _look_at_what_needs_idempotence(unsettled)
    in_flight = "max_in_flight_requests_per_connection"
    if unsettled["enable_idempotence"] and unsettled[in_flight] > MOST_IN_FLIGHT_WITH_IDEMPOTENCE:
        raise unsettled.refused(
            in_flight,
            f"contradicts {unsettled.said('enable_idempotence')}: the broker remembers "
            f"{MOST_IN_FLIGHT_WITH_IDEMPOTENCE} batches per producer; use {MOST_IN_FLIGHT_WITH_IDEMPOTENCE} or less",
        )


def _look_at_what_needs_idempotence(unsettled: UnsettledSettings) -> None:
    """Reject settings that need sequence numbers if there are none."""
    for name in ("enable_gapless_order", "enable_endless_retries"):
        if unsettled[name] and not unsettled["enable_idempotence"]:
            culprit = "enable_idempotence" if unsettled.is_given("enable_idempotence") else "acks"
            raise unsettled.refused(
                name, f"needs enable_idempotence=True, but {unsettled.said(culprit)}; keep one"
            )
    if unsettled["enable_endless_retries"] and unsettled["transactional_id"] is not None:
        raise unsettled.refused(
            "enable_endless_retries",
            f"contradicts {unsettled.said('transactional_id')}: the broker ends a transaction after "
            "transaction_timeout_ms; leave it out",
        )


def _in_flight_per_partition(unsettled: UnsettledSettings) -> int:
    name = "max_in_flight_requests_per_connection"
    if unsettled["enable_idempotence"]:
        return int(unsettled[name])
    if not unsettled.is_given(name):
        # Without sequence numbers a second batch could overtake a first one that has to be sent again.
        return 1
    if unsettled[name] > 1:
        unsettled.notes.append(
            f"{unsettled.said(name)} without idempotence: retries may reorder records (1 keeps their order)"
        )
    return int(unsettled[name])


def _settle_timeouts(unsettled: UnsettledSettings) -> None:
    if unsettled["transactional_id"] is not None and unsettled["max_block_ms"] == 0:
        raise unsettled.refused(
            "max_block_ms", f"leaves the calls of {unsettled.said('transactional_id')} no time; raise it"
        )
    needed = unsettled["linger_ms"] + unsettled["request_timeout_ms"]
    if unsettled["delivery_timeout_ms"] is None:
        _derive_delivery_timeout(unsettled, needed)
    elif unsettled["delivery_timeout_ms"] < needed - _ROUNDING:
        raise unsettled.refused(
            "delivery_timeout_ms",
            f"is shorter than {unsettled.said('linger_ms')} + {unsettled.said('request_timeout_ms')}; "
            "raise it or lower request_timeout_ms",
        )
    else:
        _compare_with_the_transaction(unsettled)


def _derive_delivery_timeout(unsettled: UnsettledSettings, needed: float) -> None:
    """Set the delivery time-out if it was left out: a record never has more time than its transaction."""
    value = max(_DELIVERY_TIMEOUT, needed)
    if unsettled["transactional_id"] is not None and unsettled["transaction_timeout_ms"] < value:
        value = unsettled["transaction_timeout_ms"]
        unsettled.derive("delivery_timeout_ms", value, unsettled.said("transaction_timeout_ms"))
    elif value == _DELIVERY_TIMEOUT:
        unsettled.default("delivery_timeout_ms", value)
    else:
        causes = [name for name in ("linger_ms", "request_timeout_ms") if unsettled.is_given(name)]
        because = " and ".join(unsettled.said(name) for name in causes)
        unsettled.derive("delivery_timeout_ms", value, because)
        unsettled.notes.append(
            f"{because} raises delivery_timeout_ms to {unsettled.shown('delivery_timeout_ms')}"
        )


def _compare_with_the_transaction(unsettled: UnsettledSettings) -> None:
    """Warn if one explicit time-out makes another, longer one useless."""
    if unsettled["transactional_id"] is None or not unsettled.is_given("transaction_timeout_ms"):
        return
    if unsettled["delivery_timeout_ms"] > unsettled["transaction_timeout_ms"] + _ROUNDING:
        unsettled.notes.append(
            f"{unsettled.said('delivery_timeout_ms')} is longer than {unsettled.said('transaction_timeout_ms')}: "
            "the broker may abort the transaction while its records are still being sent; lower "
            "delivery_timeout_ms or raise transaction_timeout_ms"
        )


def _settle_backoffs(unsettled: UnsettledSettings) -> None:
    for first, last in (
        ("retry_backoff_ms", "retry_backoff_max_ms"),
        ("reconnect_backoff_ms", "reconnect_backoff_max_ms"),
        ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"),
        ("sasl_login_retry_backoff_ms", "sasl_login_retry_backoff_max_ms"),
    ):
        if unsettled[first] <= unsettled[last]:
            continue
        if unsettled.is_given(first) and unsettled.is_given(last):
            raise unsettled.refused(first, f"is more than {unsettled.said(last)}; lower it or raise {last}")
        cause, yields = (first, last) if unsettled.is_given(first) else (last, first)
        unsettled.derive(yields, unsettled[cause], unsettled.said(cause))
        unsettled.notes.append(f"{unsettled.said(cause)} sets {yields} to the same value")


def _settle_compression(unsettled: UnsettledSettings) -> None:
    codec: Codec = unsettled["compression_type"]
    for other in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        name = f"compression_{other.name.lower()}_level"
        if not unsettled.is_given(name):
            continue
        if other is codec:
            unsettled.take_over(name, "compression_level")
        else:
            _check_level(unsettled, name, other)
            unsettled.notes.append(
                f"{unsettled.said(name)} has no effect with {unsettled.said('compression_type')}"
            )
    _check_level(unsettled, "compression_level", codec)


def _check_level(unsettled: UnsettledSettings, name: str, codec: Codec) -> None:
    try:
        check_level(codec, unsettled[name])
    except ConfigError as error:
        message = error.message.replace("compression_level=", f"{name}=", 1)
        raise ConfigError(message, setting=name, value=error.value) from None


def _settle_partitioner(unsettled: UnsettledSettings) -> None:
    if not unsettled["partitioner_ignore_keys"]:
        return
    if unsettled.is_given("partitioner") and unsettled["partitioner"] != "random":
        raise unsettled.refused(
            "partitioner_ignore_keys", f"contradicts {unsettled.said('partitioner')}; keep one"
        )
    unsettled.derive("partitioner", "random", unsettled.said("partitioner_ignore_keys"))


def _look_at_sizes(unsettled: UnsettledSettings) -> None:
    if unsettled.is_given("batch_size") and unsettled["batch_size"] > unsettled["max_request_size"]:
        unsettled.notes.append(
            f"{unsettled.said('batch_size')} is more than {unsettled.said('max_request_size')}, "
            "which also limits batches"
        )
