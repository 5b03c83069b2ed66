"""Runs transactional calls, each in its own task.

A call therefore continues if its caller is cancelled, and leaves nothing half done. If the same call is made again, it
joins the running call, or gets the result that no caller has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aioproducer.concurrency.tasks import new_task
from aioproducer.core import Core
from aioproducer.errors import CommitOutcomeUnknownError, ProducerClosed
from aioproducer.transactions.call_watch import CallWatch
from aioproducer.transactions.state import Transaction

_ENDINGS = ("commit", "abort", "fence", "initialize")
"""The calls that end a transaction. Each discards the result that was kept for an earlier call."""


class RunningCalls:
    """The running calls of one coordinator, by name. Belongs to one event loop."""

    def __init__(self, core: Core, transaction: Transaction) -> None:
        self._transaction = transaction
        self._wake = core.wake
        self.watch = CallWatch(core, transaction)
        self.by_name: dict[str, asyncio.Task[None]] = {}
        """The tasks of the running calls; most of the calls were made by the user."""
        self._abandoned: set[str] = set()
        """The names of running calls whose caller was cancelled."""
        self._unseen: tuple[str, int] | None = None
        """(name, transaction number) of the call in _ENDINGS that succeeded after its last caller was cancelled."""
        self.is_closing = False
        """True if no new call may begin."""

    async def run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a call, or join the running call of that name, and wait for it. Cancellation ends only the wait.

        Raises:
            ProducerClosed: the producer is being closed.
            CommitOutcomeUnknownError: the producer is being closed, and a commit was sent but not answered.
            KafkaError: the call failed.
        """
        if self.running(name) is None:
            if self.is_closing:
                raise ProducerClosed("the producer was closed during a transactional call")
            self.start(name, work())
        await self.join(name)

    async def join(self, name: str) -> None:
        """Wait for a running call; see `run`."""
        call = self.by_name[name]
        self._abandoned.discard(name)
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not call.cancelled() or (caller is not None and caller.cancelling()):
                self._leave(name, call)
                raise  # only the caller was cancelled; the call continues
            # close() has cancelled the call but not its caller, so the caller gets an error.
            error = self._transaction.error
            if isinstance(error, CommitOutcomeUnknownError):
                raise error from None
            raise ProducerClosed("the producer was closed during a transactional call") from None

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a call without waiting for it."""
        if name in _ENDINGS:
            self._unseen = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        call = new_task(loop, work, f"aioproducer-transaction-{name}")
        self.by_name[name] = call
        call.add_done_callback(lambda done: self._ended(name, done, loop.time() - began))

    def running(self, name: str) -> asyncio.Task[None] | None:
        """Return the running call of that name, if any. A call that has just ended cannot be joined."""
        call = self.by_name.get(name)
        return call if call is not None and not call.done() else None

    def others(self, *kinds: str) -> list[asyncio.Task[None]]:
        """Return the running calls, other than the current one, whose names begin with one of these words."""
        current = asyncio.current_task()
        return [
            call
            for name, call in self.by_name.items()
            if name.startswith(kinds) and not call.done() and call is not current
        ]

    def take_unseen_success(self, name: str) -> bool:
        """Return whether the call succeeded after its last caller was cancelled. Each success is reported only once."""
        call = self.by_name.get(name)
        if call is not None and call.done():
            self._settle(name, call)  # the call has just ended, and its callback has not run yet
        if self._unseen != (name, self._transaction.number):
            return False
        self._unseen = None
        return True

    async def ended(self) -> None:
        """Wait for the running calls and ignore their results."""
        await asyncio.gather(*self.by_name.values(), return_exceptions=True)

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        self.is_closing = True
        calls = list(self.by_name.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _ended(self, name: str, call: asyncio.Task[None], seconds: float) -> None:
        if self.by_name.get(name) is call:
            self._settle(name, call)
            del self.by_name[name]
        self._wake.set()
        if not call.cancelled():
            # exception() marks the error as retrieved: a caller gets it, and the transaction's state records it.
            self.watch.ended(name, seconds, call.exception())

    def _settle(self, name: str, call: asyncio.Task[None]) -> None:
        """Keep the result of a call that ended after its last caller was cancelled."""
        if name in self._abandoned:
            self._abandoned.remove(name)
            self._leave(name, call)

    def _leave(self, name: str, call: asyncio.Task[None]) -> None:
        """Record that no caller is waiting for this call. If it succeeds, its result is kept in case the call is
        repeated."""
        if not call.done():
            self._abandoned.add(name)
        elif name in _ENDINGS and not call.cancelled() and call.exception() is None:
            self._unseen = name, self._transaction.number
