"""Settles contradictions between settings. It is an error if two explicit settings contradict each other. An explicit
setting overrides a default, and a keyword overrides a setting from a file, usually with a note.

Each function settles one group; `settle` calls them in order and collects their errors. If a default was overridden,
its origin names the setting that overrode it."""

from __future__ import annotations

from functools import partial

from aioproducer.errors import ConfigError
from aioproducer.protocol.compression import Codec, check_level
from aioproducer.settings.security import settle_security
from aioproducer.settings.unsettled import UnsettledSettings

MOST_IN_FLIGHT_WITH_IDEMPOTENCE = 5
"""The number of batches that a broker remembers per producer and partition
(ProducerStateEntry.NUM_BATCHES_TO_RETAIN)."""
_ROUNDING = 1e-9
"""The tolerance in seconds for comparing durations: sums that are equal in milliseconds may differ in seconds."""
_DELIVERY_TIMEOUT = 120.0
_SHORTEST_REQUEST = 0.001
"""The shortest request timeout, in seconds."""
_IN_FLIGHT = "max_in_flight_requests_per_connection"
_REMEMBERED = (
    f"the broker remembers only {MOST_IN_FLIGHT_WITH_IDEMPOTENCE} batches per producer; "
    f"use {MOST_IN_FLIGHT_WITH_IDEMPOTENCE} or less"
)


def settle(unsettled: UnsettledSettings) -> int:
    """Settle all groups of settings, and return the maximum number of requests in flight for one partition.

    Raises:
        ConfigError: the settings contain mistakes; the error names all of them.
    """
    unsettled.attempt(lambda settings: settings.take_over("max_batch_size", "batch_size"))
    _settle_idempotence(unsettled)
    unsettled.attempt(_look_at_blocking)
    unsettled.attempt(_settle_timeouts)
    _settle_backoffs(unsettled)
    unsettled.attempt(_settle_compression)
    unsettled.attempt(_settle_partitioner)
    unsettled.attempt(_look_at_sizes)
    settle_security(unsettled)
    unsettled.raise_mistakes()
    return _in_flight_per_partition(unsettled)


def _settle_idempotence(unsettled: UnsettledSettings) -> None:
    checks = (
        _look_at_transactional_acks,
        _look_at_transactional_requests,
        _look_at_acks,
        _look_at_in_flight,
        _look_at_gapless_order,
        _look_at_endless_retries,
    )
    if all([unsettled.attempt(check) for check in checks]):
        unsettled.attempt(_derive_idempotence)


def _look_at_transactional_acks(unsettled: UnsettledSettings) -> None:
    if unsettled["transactional_id"] is None:
        return
    for culprit, is_wrong in (
        ("acks", unsettled["acks"] != -1),
        ("enable_idempotence", unsettled["enable_idempotence"] is False),
    ):
        if is_wrong:
            raise unsettled.error_for(
                "transactional_id",
                f"requires acks='all' and enable_idempotence=True, but {unsettled.as_text(culprit)} is set; leave out "
                f"either {culprit} or transactional_id",
                against=(culprit,),
            )


def _look_at_transactional_requests(unsettled: UnsettledSettings) -> None:
    if unsettled["transactional_id"] is not None and unsettled[_IN_FLIGHT] > MOST_IN_FLIGHT_WITH_IDEMPOTENCE:
        raise unsettled.error_for(
            _IN_FLIGHT,
            f"cannot be used with {unsettled.as_text('transactional_id')}, which requires idempotence: {_REMEMBERED}",
            against=("transactional_id",),
        )


def _look_at_acks(unsettled: UnsettledSettings) -> None:
    if unsettled["enable_idempotence"] and unsettled["acks"] != -1:
        raise unsettled.error_for(
            "acks",
            f"cannot be used with {unsettled.as_text('enable_idempotence')}, which requires acks='all'; "
            "set enable_idempotence=False if you do not need protection against duplicates",
            against=("enable_idempotence",),
        )


def _look_at_in_flight(unsettled: UnsettledSettings) -> None:
    if unsettled["enable_idempotence"] and unsettled[_IN_FLIGHT] > MOST_IN_FLIGHT_WITH_IDEMPOTENCE:
        raise unsettled.error_for(
            _IN_FLIGHT,
            f"cannot be used with {unsettled.as_text('enable_idempotence')}: {_REMEMBERED}",
            against=("enable_idempotence",),
        )


def _derive_idempotence(unsettled: UnsettledSettings) -> None:
    """Switch idempotence on or off if the user did not set it."""
    if unsettled["enable_idempotence"] is not None:
        return
    if unsettled["acks"] != -1:
        cause, effect = "acks", "retries may duplicate records"
    elif unsettled[_IN_FLIGHT] > MOST_IN_FLIGHT_WITH_IDEMPOTENCE:
        cause, effect = _IN_FLIGHT, "retries may duplicate and reorder records"
    else:
        unsettled.default("enable_idempotence", True)
        return
    unsettled.derive("enable_idempotence", False, unsettled.as_text(cause))
    unsettled.notes.append(
        f"{unsettled.as_text(cause)} turns enable_idempotence off, so {effect} "
        "(set enable_idempotence=False to avoid this warning)"
    )


def _look_at_gapless_order(unsettled: UnsettledSettings) -> None:
    _look_at_need_of_idempotence(unsettled, "enable_gapless_order")


def _look_at_endless_retries(unsettled: UnsettledSettings) -> None:
    name = "enable_endless_retries"
    _look_at_need_of_idempotence(unsettled, name)
    if unsettled[name] and unsettled["transactional_id"] is not None:
        raise unsettled.error_for(
            name,
            f"cannot be used with {unsettled.as_text('transactional_id')}: the broker ends a transaction after "
            "transaction_timeout_ms; leave enable_endless_retries out",
            against=("transactional_id",),
        )


def _look_at_need_of_idempotence(unsettled: UnsettledSettings, name: str) -> None:
    """Reject a setting that needs sequence numbers if idempotence will be off."""
    if not unsettled[name] or unsettled["enable_idempotence"]:
        return
    if unsettled["enable_idempotence"] is False:
        culprit = "enable_idempotence"
    elif unsettled["acks"] != -1:
        culprit = "acks"
    elif unsettled[_IN_FLIGHT] > MOST_IN_FLIGHT_WITH_IDEMPOTENCE:
        culprit = _IN_FLIGHT
    else:
        return
    raise unsettled.error_for(
        name,
        f"requires enable_idempotence=True, but {unsettled.as_text(culprit)} is set; leave one of them out",
        against=(culprit,),
    )


def _in_flight_per_partition(unsettled: UnsettledSettings) -> int:
    if unsettled["enable_idempotence"]:
        return int(unsettled[_IN_FLIGHT])
    if not unsettled.is_given(_IN_FLIGHT):
        # Without sequence numbers, the next batch could overtake a batch that must be sent again.
        return 1
    is_the_cause = not unsettled.is_given("enable_idempotence") and unsettled["acks"] == -1
    if unsettled[_IN_FLIGHT] > 1 and not is_the_cause:
        unsettled.notes.append(
            f"{unsettled.as_text(_IN_FLIGHT)} is used without idempotence, so retries may reorder records (1 keeps "
            "their order)"
        )
    return int(unsettled[_IN_FLIGHT])


def _look_at_blocking(unsettled: UnsettledSettings) -> None:
    if unsettled["transactional_id"] is not None and unsettled["max_block_ms"] == 0:
        raise unsettled.error_for(
            "max_block_ms",
            f"leaves no time for the transactional calls ({unsettled.as_text('transactional_id')}); raise it",
            against=("transactional_id",),
        )


def _settle_timeouts(unsettled: UnsettledSettings) -> None:
    needed = unsettled["linger_ms"] + unsettled["request_timeout_ms"]
    delivery = unsettled["delivery_timeout_ms"]
    if delivery is None:
        _derive_delivery_timeout(unsettled, needed)
        return
    if delivery < needed - _ROUNDING:
        if unsettled.is_given("request_timeout_ms"):
            is_long = unsettled["request_timeout_ms"] > delivery
            raise unsettled.error_for(
                "delivery_timeout_ms",
                f"is shorter than {unsettled.as_text('linger_ms')} + {unsettled.as_text('request_timeout_ms')}; "
                "raise it or lower request_timeout_ms",
                against=("request_timeout_ms",) if is_long else ("request_timeout_ms", "linger_ms"),
            )
        _lower_request_timeout(unsettled, delivery)
    _compare_with_the_transaction(unsettled)


def _lower_request_timeout(unsettled: UnsettledSettings, delivery: float) -> None:
    """Lower request_timeout_ms to delivery_timeout_ms - linger_ms; set linger_ms to 0 if that leaves no time."""
    room = delivery - unsettled["linger_ms"]
    lowered = ["request_timeout_ms"]
    if room < _SHORTEST_REQUEST:
        if unsettled.is_given("linger_ms"):
            raise unsettled.error_for(
                "delivery_timeout_ms",
                f"leaves no time after {unsettled.as_text('linger_ms')}; raise it or lower linger_ms",
                against=("linger_ms",),
            )
        if delivery < _SHORTEST_REQUEST:
            raise unsettled.error_for("delivery_timeout_ms", "leaves no time to send a record; raise it")
        room = delivery
        unsettled.derive("linger_ms", 0.0, unsettled.as_text("delivery_timeout_ms"))
        lowered.append("linger_ms")
    unsettled.derive("request_timeout_ms", room, unsettled.as_text("delivery_timeout_ms"))
    unsettled.notes.append(
        f"{unsettled.as_text('delivery_timeout_ms')} lowers "
        + " and ".join(f"{name} to {unsettled.shown(name)}" for name in lowered)
    )


def _derive_delivery_timeout(unsettled: UnsettledSettings, needed: float) -> None:
    """Choose delivery_timeout_ms if it was left out: at most transaction_timeout_ms if there is a transactional_id."""
    value = max(_DELIVERY_TIMEOUT, needed)
    if unsettled["transactional_id"] is not None and unsettled["transaction_timeout_ms"] < value:
        value = unsettled["transaction_timeout_ms"]
        unsettled.derive("delivery_timeout_ms", value, unsettled.as_text("transaction_timeout_ms"))
    elif value == _DELIVERY_TIMEOUT:
        unsettled.default("delivery_timeout_ms", value)
    else:
        causes = [name for name in ("linger_ms", "request_timeout_ms") if unsettled.is_given(name)]
        because = " and ".join(unsettled.as_text(name) for name in causes)
        unsettled.derive("delivery_timeout_ms", value, because)
        raises = "raises" if len(causes) == 1 else "raise"
        unsettled.notes.append(
            f"{because} {raises} delivery_timeout_ms to {unsettled.shown('delivery_timeout_ms')}"
        )


def _compare_with_the_transaction(unsettled: UnsettledSettings) -> None:
    """Warn if delivery_timeout_ms is longer than an explicit transaction_timeout_ms."""
    if unsettled["transactional_id"] is None or not unsettled.is_given("transaction_timeout_ms"):
        return
    if unsettled["delivery_timeout_ms"] > unsettled["transaction_timeout_ms"] + _ROUNDING:
        unsettled.notes.append(
            f"{unsettled.as_text('delivery_timeout_ms')} is longer than {unsettled.as_text('transaction_timeout_ms')}: "
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
        unsettled.attempt(partial(_settle_backoff, first=first, last=last))


def _settle_backoff(unsettled: UnsettledSettings, first: str, last: str) -> None:
    if unsettled[first] <= unsettled[last]:
        return
    if unsettled.is_given(first) and unsettled.is_given(last):
        problem = f"is more than {unsettled.as_text(last)}; lower it or raise {last}"
        raise unsettled.error_for(first, problem, against=(last,))
    cause, yields = (first, last) if unsettled.is_given(first) else (last, first)
    unsettled.derive(yields, unsettled[cause], unsettled.as_text(cause))
    unsettled.notes.append(f"{unsettled.as_text(cause)} sets {yields} to the same value")


def _settle_compression(unsettled: UnsettledSettings) -> None:
    codec: Codec = unsettled["compression_type"]
    notes = []
    for other in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        name = f"compression_{other.name.lower()}_level"
        if not unsettled.is_given(name):
            continue
        if other is codec:
            unsettled.take_over(name, "compression_level")
        else:
            _check_level(unsettled, name, other)
            notes.append(
                f"{unsettled.as_text(name)} has no effect with {unsettled.as_text('compression_type')}"
            )
    _check_level(unsettled, "compression_level", codec)
    unsettled.notes += notes


def _check_level(unsettled: UnsettledSettings, name: str, codec: Codec) -> None:
    try:
        check_level(codec, unsettled[name])
    except ConfigError as error:
        message = error.message.replace("compression_level=", f"{name}=", 1)
        refusal = unsettled.contradiction(
            message + unsettled.place(name), name, error.value, (name, "compression_type")
        )
    else:
        return
    raise refusal


def _settle_partitioner(unsettled: UnsettledSettings) -> None:
    if not unsettled["partitioner_ignore_keys"]:
        return
    if unsettled.is_given("partitioner") and unsettled["partitioner"] != "random":
        raise unsettled.error_for(
            "partitioner_ignore_keys",
            f"cannot be used with {unsettled.as_text('partitioner')}; leave one of them out",
            against=("partitioner",),
        )
    unsettled.derive("partitioner", "random", unsettled.as_text("partitioner_ignore_keys"))


def _look_at_sizes(unsettled: UnsettledSettings) -> None:
    if unsettled.is_given("batch_size") and unsettled["batch_size"] > unsettled["max_request_size"]:
        unsettled.notes.append(
            f"{unsettled.as_text('batch_size')} is more than {unsettled.as_text('max_request_size')}, "
            "which also limits batches"
        )
