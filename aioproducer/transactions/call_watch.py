"""Counts the user's transactional calls, and reports them to the hooks."""

from __future__ import annotations

from aioproducer.core import Core
from aioproducer.observe.hooks import TransactionEvent
from aioproducer.transactions.state import Transaction

_NAMES = {"offsets": "send_offsets"} | {
    name: name for name in ("begin", "initialize", "commit", "abort", "fence")
}
"""The names of the user's calls. The keys are the first words of the names under which RunningCalls runs them."""


class CallWatch:
    """Counts each call when it ends, and notifies the hooks."""

    def __init__(self, core: Core, transaction: Transaction) -> None:
        self._metrics = core.metrics
        self._hooks = core.hooks
        self._transaction = transaction

    def ended(self, name: str, seconds: float, error: BaseException | None) -> None:
        """Count a call that ran under `name` in RunningCalls. The producer's own calls are not counted."""
        call = _NAMES.get(name.partition(" ")[0])
        if call is None:
            return
        self._metrics.transaction_call(call).add(seconds, is_failure=error is not None)
        if self._hooks.on_transaction:
            event = TransactionEvent(
                self._hooks.client_id, self._transaction.transactional_id, call, seconds, error
            )
            self._hooks.tell(self._hooks.on_transaction, event)
