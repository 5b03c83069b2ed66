"""Producers shared by all code in a process, for frameworks that offer no place to start and close a producer.

A forked child does not use its parent's producers: the first call in the child builds a new one."""

from __future__ import annotations

import os
import threading
from typing import Any

from aioproducer import CloseReport, ConfigError
from aioproducer.blocking.loop_thread import check_may_block
from aioproducer.blocking.producer import Producer
from aioproducer.errors import IllegalStateError
from aioproducer.settings.entries import check_keywords

Shared = tuple[dict[str, Any], Producer[Any, Any]]
"""The settings that were passed to shared_producer(), with hidden secrets, and the producer."""

_shared: tuple[Shared, ...] = ()
"""The shared producers. The tuple is replaced as a whole, so it can be read without the lock."""
_inherited: list[tuple[Shared, ...]] = []
"""The producers of the parent process. They are kept, because a garbage-collected producer would warn that it was
not closed."""
_lock = threading.RLock()
_is_building = False


def shared_producer(**settings: Any) -> Producer[Any, Any]:
    """Return this process's started producer with these settings. The first call builds it.

        def order_placed(order_id: int) -> None:
            producer = shared_producer(bootstrap_servers="localhost:9092")
            producer.send("orders", str(order_id).encode()).result()

    Calls with equal settings return the same producer in all threads. The call does not wait for brokers: the
    producer connects in the background, and `send` waits for its topic (max_block_ms). The producer is closed at
    interpreter exit, within 10 seconds, or by `close_shared_producers`. Do not use it in a `with` statement. After the
    producer is closed, the next call builds a new one.

    Args:
        settings: the settings of `Producer`, except transactional_id.

    Raises:
        ConfigError: a setting is unknown, malformed or contradicts another one; or transactional_id is set.
        WrongLoopError: an event loop is running in this thread.
        IllegalStateError: this thread is already building a shared producer (for example, a log handler made the call).
    """
    check_keywords(settings)
    found = _open(settings)
    if found is not None:
        return found
    check_may_block()
    with _lock:
        return _open(settings) or _build(settings)


def close_shared_producers(timeout: float | None = None) -> list[CloseReport]:
    """Close the shared producers in this process. Call it in a process that exits without atexit, such as a Celery
    worker.

    Args:
        timeout: the timeout for closing each producer, as in `Producer.close`.

    Returns:
        Each producer's report.
    """
    global _shared
    check_may_block()
    with _lock:
        closing, _shared = _shared, ()
    return [producer.close(timeout) for _, producer in closing]


def _open(settings: dict[str, Any]) -> Producer[Any, Any] | None:
    """Return the open producer with these settings, or None if there is none."""
    for given, producer in _shared:
        if given == settings and producer._report is None:
            return producer
    return None


def _build(settings: dict[str, Any]) -> Producer[Any, Any]:
    global _is_building, _shared
    if settings.get("transactional_id") is not None:
        raise ConfigError(
            "a shared producer can't have a transactional_id: the records from all threads would be in one "
            "transaction, and the processes would fence each other; create a Producer for each transactional_id",
            setting="transactional_id",
            value=settings["transactional_id"],
        )
    if _is_building:
        raise IllegalStateError(
            "shared_producer() was called while this thread was creating a shared producer; a log handler that calls "
            "it must not receive records from the loggers under 'aioproducer'"
        )
    _is_building = True
    try:
        producer: Producer[Any, Any] = Producer(**settings)
        producer._closes_at_exit = True
        producer.start(wait=False)
    finally:
        _is_building = False
    _shared = (*(one for one in _shared if one[1]._report is None), (dict(settings), producer))
    return producer


def _forked() -> None:
    global _is_building, _lock, _shared
    _inherited.append(_shared)
    _shared = ()
    _is_building = False
    _lock = threading.RLock()  # another thread in the parent may have held the old lock


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)
