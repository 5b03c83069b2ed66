"""Calling the user's interceptors: they see each record before all else, and once what became of it.

One that raises is logged and skipped, as in Kafka's ProducerInterceptors: the record goes on without it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from aioproducer.records._record_path import Delivery, RecordMetadata
from aioproducer.types import ProducerRecord, qualified_name

logger = logging.getLogger(__name__)


class Interceptor(Protocol):
    """What `Producer(interceptors=[...])` takes; an object with only one of the two methods will do.

    Both run on the producer's event loop and must not block; neither can be async.
    """

    def on_send(self, record: ProducerRecord, /) -> ProducerRecord:
        """A record as `send` was given it, before anything else looks at it; returns it, or another one."""
        ...

    def on_acknowledgement(self, result: RecordMetadata | BaseException, /) -> None:
        """Once for each record: where it is, or why it is nowhere, or perhaps nowhere (`outcome`)."""
        ...


class Interceptors:
    """All interceptors of a producer, in order. Without any, each call does nothing."""

    def __init__(self, interceptors: Sequence[Interceptor]) -> None:
        self._on_send: list[Callable[[ProducerRecord], object]] = _methods(interceptors, "on_send")
        self._on_acknowledgement: list[Callable[[RecordMetadata | BaseException], object]] = _methods(
            interceptors, "on_acknowledgement"
        )

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record as the interceptors leave it."""
        for call in self._on_send:
            try:
                result = call(record)
            except Exception:
                logger.warning(
                    "the interceptor %s raised and is skipped", qualified_name(call), exc_info=True
                )
                continue
            if isinstance(result, ProducerRecord):
                record = result
                continue
            _close(result)
            logger.warning(
                "the interceptor %s returned %s instead of a ProducerRecord and is skipped; on_send must return the "
                "record and can't be async",
                qualified_name(call),
                type(result).__name__,
            )
        return record

    def on_acknowledgement(self, result: RecordMetadata | BaseException) -> None:
        """Tell all of them what became of a record."""
        for call in self._on_acknowledgement:
            try:
                returned = call(result)
            except Exception:
                logger.warning(
                    "the interceptor %s raised and is skipped", qualified_name(call), exc_info=True
                )
                continue
            if _close(returned):
                logger.warning(
                    "the interceptor %s is async and is skipped; on_acknowledgement can't be awaited",
                    qualified_name(call),
                )

    def watch(self, delivery: Delivery) -> None:
        """Tell them of this record when it has its result, whatever becomes of the user's own delivery."""
        if self._on_acknowledgement:
            delivery.batch.another(delivery).add_done_callback(self._ended)

    def _ended(self, watched: Delivery) -> None:
        self.on_acknowledgement(watched.exception() or watched.result())


def _methods(interceptors: Sequence[Interceptor], name: str) -> list[Callable[..., object]]:
    found = (getattr(interceptor, name, None) for interceptor in interceptors)
    return [method for method in found if method is not None]


def _close(returned: object) -> bool:
    """Close a coroutine that nothing will await. False if it is something else."""
    if not inspect.iscoroutine(returned):
        return False
    returned.close()
    return True
