"""The future of one record, with aiokafka's result and aiokafka's errors."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, cast

from aioproducer import Delivery
from aioproducer import RecordMetadata as AcknowledgedRecord
from aioproducer.compat.aiokafka.structs import RecordMetadata
from aioproducer.compat.aiokafka.translation import aiokafka_errors, translate
from aioproducer.errors import KafkaError


class Future:
    """A future that asyncio accepts as one of its own; `AIOKafkaProducer.send` returns it.

    The future reads its Delivery only when it is used, so it costs nothing until then. The record is sent even if the
    future is cancelled."""

    __slots__ = ("_delivery", "_is_acknowledged")

    def __init__(self, delivery: Delivery, is_acknowledged: bool) -> None:
        self._delivery = delivery
        self._is_acknowledged = is_acknowledged
        """False with acks=0, for which aiokafka's result is None."""

    # asyncio recognizes a future by this attribute.
    @property
    def _asyncio_future_blocking(self) -> bool:
        return self._delivery._asyncio_future_blocking

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, value: bool) -> None:
        self._delivery._asyncio_future_blocking = value

    @property
    def _cancel_message(self) -> Any:
        return cast(Any, self._delivery)._cancel_message  # anyio reads it

    @property
    def _loop(self) -> AbstractEventLoop:
        return self._delivery._loop

    def _make_cancelled_error(self) -> BaseException:
        return cast(Any, self._delivery)._make_cancelled_error()  # type: ignore[no-any-return]  # asyncio.gather calls it

    def get_loop(self) -> AbstractEventLoop:
        """Return the event loop of the producer."""
        return self._delivery.get_loop()

    def done(self) -> bool:
        """Return whether the record's result is known or the wait was cancelled."""
        return self._delivery.done()

    def cancelled(self) -> bool:
        """Return whether the wait was cancelled."""
        return self._delivery.cancelled()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the wait. The record is still sent."""
        return self._delivery.cancel(msg)

    def result(self) -> RecordMetadata:
        """Return the metadata of the stored record, or None with acks=0.

        Raises:
            KafkaError: the record failed. The error is an instance of the class that aiokafka would have raised.
        """
        with aiokafka_errors:
            record = self._delivery.result()
        return self._result_of(record)

    def _result_of(self, record: AcknowledgedRecord) -> RecordMetadata:
        return RecordMetadata.of(record) if self._is_acknowledged else cast(RecordMetadata, None)

    def exception(self) -> BaseException | None:
        """Return the error of a failed record, or None."""
        error = self._delivery.exception()
        return translate(error) if isinstance(error, KafkaError) else error

    def add_done_callback(
        self, callback: Callable[[Future], object], *, context: Context | None = None
    ) -> None:
        """Call `callback(self)` in the event loop when the record's result is known or the wait is cancelled."""
        self._delivery.add_done_callback(_Callback(self, callback), context=context)

    def remove_done_callback(self, callback: Callable[[Future], object]) -> int:
        """Remove a callback that add_done_callback() added. Return the number of removed callbacks."""
        return self._delivery.remove_done_callback(_Callback(self, callback))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        with aiokafka_errors:
            record = yield from self._delivery.__await__()
        return self._result_of(record)

    __iter__ = __await__

    def __repr__(self) -> str:
        return repr(self._delivery).replace("Delivery", "Future", 1)


class _Callback:
    """A callback that receives the Future instead of its Delivery."""

    __slots__ = ("_callback", "_future")

    def __init__(self, future: Future, callback: Callable[[Future], object]) -> None:
        self._future = future
        self._callback = callback

    def __call__(self, delivery: Delivery) -> object:
        return self._callback(self._future)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Callback) and self._callback == other._callback

    __hash__ = None  # type: ignore[assignment]  # callbacks are only compared
