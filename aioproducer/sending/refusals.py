"""Builds the exceptions for failed deliveries. Their messages contain the broker's response, or the reason why a batch
failed."""

from __future__ import annotations

from typing import NamedTuple

from aioproducer.errors import DeliveryError, counted, escaped
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import ProduceResponse
from aioproducer.protocol.outcomes import Action, Moment, advice
from aioproducer.records.batch import ProducerBatch
from aioproducer.types import Outcome


def message_of(answer: ProduceResponse.PartitionProduceResponse) -> str:
    """Return the broker's own message in a form that can be appended to an error name."""
    return f": {escaped(answer.error_message)}" if answer.error_message else ""


class PartitionAnswer(NamedTuple):
    """A broker's answer about one batch, and the action that the error table prescribes."""

    batch: ProducerBatch
    answer: ProduceResponse.PartitionProduceResponse
    response: ProduceResponse
    """The response that contains `answer`."""
    action: Action
    now: float
    """The loop's time."""
    was_in_doubt: bool
    """True if the batch may already have been in the log before this answer."""

    @property
    def refusal(self) -> str:
        """The broker's answer as text, with advice. Built only on demand: most rejected batches are resent silently."""
        batch, answer = self.batch, self.answer
        if not answer.error_code:
            return (
                f"broker {batch.broker} already had records with these sequence numbers: {self._why_repeated}"
            )
        name = error_name(answer.error_code)
        refusal = f"broker {batch.broker} rejected the records with {name}{message_of(answer)}"
        if self.action is Action.DAMAGED:
            return (
                f"{refusal}, and their {batch.wire_size} bytes no longer match their checksum, so they were damaged "
                "in this process's memory; check the machine's memory and the native code in use"
            )
        return f"{refusal}{advice(answer.error_code)}"

    @property
    def _why_repeated(self) -> str:
        """Why a broker may already know a participant's first batch."""
        if self.was_in_doubt:
            return (
                "the answer to an earlier attempt was lost, so the records in the log may be these or another "
                "producer's, and a participant cannot know which; abort the transaction and run it again"
            )
        return (
            "another producer has written to the partition in the same transaction (or message.timestamp.type is "
            "LogAppendTime, and attach() was called without log_append_time=True)"
        )


def reason_of(batch: ProducerBatch, moment: Moment) -> str:
    """Return text that says why `moment` ends a batch."""
    if moment is Moment.BEHIND:
        return str(moment.value)
    return f"delivery timed out: the last error was: {batch.last_error!r}"


def error_of(
    batch: ProducerBatch,
    reason: str,
    kind: type[DeliveryError],
    *,
    elapsed: float,
    count: int,
    requires_abort: bool,
    requires_reinit: bool,
) -> DeliveryError:
    """Return the error for `count` records in a batch that was created `elapsed` seconds ago."""
    queue = batch.queue
    where = f"{queue.topic}-{queue.partition}"
    subject, is_ = ("it", "is") if count == 1 else ("they", "are")
    known = f"{is_} not" if batch.outcome is Outcome.NOT_PERSISTED else "may be"
    return kind(
        f"{counted(count, 'record')} for {where} failed after {elapsed:.3f} s and "
        f"{counted(batch.attempts, 'attempt')}: {reason} ({subject} {known} in the log)",
        outcome=batch.outcome,
        topic=queue.topic,
        partition=queue.partition,
        broker=batch.broker,
        attempts=batch.attempts,
        elapsed=elapsed,
        last_error=batch.last_error,
        requires_abort=requires_abort,
        requires_reinit=requires_reinit,
    )
