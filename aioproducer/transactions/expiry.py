"""Aborts a transaction that stays open for too long.

The sender calls `watch` on each pass; the coordinator sends the abort."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from aioproducer.core import Core
from aioproducer.errors import KafkaError
from aioproducer.observe.client_log import ClientLog
from aioproducer.transactions.running_calls import RunningCalls
from aioproducer.transactions.state import Transaction, TransactionState, abortable

LONGEST_OPEN = 0.8
"""The share of transaction_timeout_ms for which a transaction may stay open uncommitted; the rest is left for
the abort."""


class Expiry:
    """Watches how long the transaction has been open. Belongs to one event loop.

    `abort`, which sends the abort to the coordinator, runs as a separate call named "expiry".
    """

    def __init__(
        self,
        core: Core,
        transaction: Transaction,
        calls: RunningCalls,
        log: ClientLog,
        abort: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._timeout = core.config.transaction_timeout
        self._log = log
        self._transaction = transaction
        self._wake = core.wake
        self._calls = calls
        self._abort = abort

    def watch(self, now: float) -> float | None:
        """Abort an open transaction that is close to its time-out. Return the time of the next check, or None.

        Without this abort, the brokers would abort the transaction later, and with v1 also fence its producer;
        readers would wait until then."""
        transaction = self._transaction
        if not transaction.may_have_started or transaction.has_expired:
            return None
        if transaction.began is None:
            transaction.began = now
        if transaction.state not in (TransactionState.IN_TRANSACTION, TransactionState.ABORT_REQUIRED):
            return None
        limit = self._timeout
        due = transaction.began + LONGEST_OPEN * limit
        if now < due:
            return due
        if self._calls.is_closing:
            return None
        transaction.has_expired = True
        cause = KafkaError(
            f"it was open for {now - transaction.began:.1f} s, more than {LONGEST_OPEN:.0%} of "
            f"transaction_timeout_ms={limit * 1000:g}; commit sooner, or raise transaction_timeout_ms"
        )
        self._log.warning("the transaction of %r is being aborted: %s", transaction.transactional_id, cause)
        transaction.require_abort(abortable(transaction, cause))
        self._wake.set()  # the sender fails the records that were not sent
        self._calls.start("expiry", self._abort())
        return None
