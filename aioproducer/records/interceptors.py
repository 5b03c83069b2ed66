"""Calls the user's interceptors for each record: once before anything else happens to it, and again when its result is
known.

An interceptor that raises an exception is logged and skipped, as in Kafka's ProducerInterceptors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from aioproducer.observe.client_log import ClientLog
from aioproducer.records._record_path import Delivery, RecordMetadata, intercepted
from aioproducer.types import ENDS_OF_THE_PROGRAM, ProducerRecord, qualified_name, takes_second


class Interceptor(Protocol):
    """An item of `Producer(interceptors=[...])`. An object needs only one of the two methods.

    Both methods run in the producer's event loop. They must not block and cannot be async. If on_send returns
    `record._replace(context=...)`, on_acknowledgement can recognize the record by its context.
    """

    def on_send(self, record: ProducerRecord, /) -> ProducerRecord:
        """Receive a record as it was passed to `send` or returned by the previous interceptor. Return the same record
        or another one."""
        ...

    def on_acknowledgement(self, result: RecordMetadata | BaseException, record: ProducerRecord, /) -> None:
        """Receive the result of a record: its metadata, or its error with an `outcome`. Called once for each record.

        `record` is the record that the last on_send returned; it is passed by position. A method with one parameter
        receives only the result.
        """
        ...


class Interceptors:
    """All interceptors of a producer, in order. Without interceptors, each method does nothing."""

    def __init__(self, interceptors: Sequence[Interceptor], log: ClientLog) -> None:
        self._log = log
        self.methods: list[Callable[[ProducerRecord], object]] = _methods(interceptors, "on_send")
        """The on_send methods, which the compiled record path calls directly."""
        self._on_acknowledgement = [
            (call, takes_second(call, "record", or_any=True))
            for call in _methods(interceptors, "on_acknowledgement")
        ]
        """Each on_acknowledgement method, and whether it also receives the record."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Pass a record through all interceptors and return the resulting record."""
        return intercepted(self, self.methods, record)

    def note_failure(self, method: Callable[..., object]) -> None:
        """Log the current exception, which was raised by an interceptor."""
        self._log.warning(
            "the interceptor %s raised an exception and was skipped for this record",
            qualified_name(method),
            exc_info=True,
        )

    def note_wrong_result(self, method: Callable[..., object], result: object) -> None:
        """Log that an interceptor did not return a record."""
        _close(result)
        self._log.warning(
            "the interceptor %s returned %s instead of a ProducerRecord and was skipped for this record; on_send must "
            "return the record and can't be async",
            qualified_name(method),
            type(result).__name__,
        )

    @property
    def is_empty(self) -> bool:
        return not self.methods and not self._on_acknowledgement

    @property
    def want_results(self) -> bool:
        return bool(self._on_acknowledgement)

    def on_acknowledgement(self, result: RecordMetadata | BaseException, record: ProducerRecord) -> None:
        """Call all interceptors with the result of a record."""
        for call, takes_record in self._on_acknowledgement:
            try:
                returned = call(result, record) if takes_record else call(result)
            except ENDS_OF_THE_PROGRAM:
                raise
            except BaseException:
                self.note_failure(call)
                continue
            if _close(returned):
                self._log.warning(
                    "the interceptor %s is async and was skipped for this record; on_acknowledgement can't be awaited",
                    qualified_name(call),
                )

    def watch(self, delivery: Delivery, record: ProducerRecord) -> None:
        """Call all interceptors once this record's result is known, even if the user's own delivery is cancelled."""
        if self._on_acknowledgement:
            delivery.batch.another(delivery).add_done_callback(partial(self._ended, record))

    def _ended(self, record: ProducerRecord, watched: Delivery) -> None:
        self.on_acknowledgement(watched.exception() or watched.result(), record)


def _methods(interceptors: Sequence[Interceptor], name: str) -> list[Callable[..., object]]:
    found = (getattr(interceptor, name, None) for interceptor in interceptors)
    return [method for method in found if method is not None]


def _close(returned: object) -> bool:
    """Close a coroutine that will not be awaited. Return False if it is not a coroutine."""
    if not inspect.iscoroutine(returned):
        return False
    returned.close()
    return True
