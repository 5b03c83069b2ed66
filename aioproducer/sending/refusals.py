"""Texts of failed deliveries: a broker's answer, the reason why a batch failed, and the error that its records get."""

from __future__ import annotations

from typing import NamedTuple

from aioproducer.errors import DeliveryError, escaped
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import ProduceResponse
from aioproducer.protocol.outcomes import Action, Moment, advice
from aioproducer.records.batch import ProducerBatch
from aioproducer.types import Outcome


def message_of(answer: ProduceResponse.PartitionProduceResponse) -> str:
    """The broker's own words behind an error's name."""
    return f": {escaped(answer.error_message)}" if answer.error_message else ""


class PartitionAnswer(NamedTuple):
    """A broker's answer about one batch, and what the error table says to do."""

    batch: ProducerBatch
    answer: ProduceResponse.PartitionProduceResponse
    response: ProduceResponse
    """The response that `answer` is a part of."""
    action: Action
    now: float
    """The loop's time."""
    was_in_doubt: bool
    """The batch may have been in the log before this answer."""

    @property
    def refusal(self) -> str:
        """The broker's answer in words, with advice. Built only when asked for: most refusals are retried silently."""
        batch, answer = self.batch, self.answer
        if not answer.error_code:
            return f"broker {batch.broker} had records with these numbers before: {self._why_repeated}"
        name = error_name(answer.error_code)
        refusal = f"broker {batch.broker} refused the records with {name}{message_of(answer)}"
        if self.action is Action.DAMAGED:
            return (
                f"{refusal}, and their {batch.wire_size} bytes no longer match the checksum that was made of them: "
                "they were damaged in this process's memory; check the machine's memory and the native code in use"
            )
        return f"{refusal}{advice(answer.error_code)}"

    @property
    def _why_repeated(self) -> str:
        """Why a broker can know a participant's first batch already."""
        if self.was_in_doubt:
            return (
                "the answer to an earlier attempt was lost, so they are these records or another producer's, and a "
                "participant can't find out which; abort the transaction and run it again"
            )
        return (
            "another producer has written to the partition in the same transaction (or message.timestamp.type is "
            "LogAppendTime and attach was not told)"
        )


def reason_of(batch: ProducerBatch, moment: Moment) -> str:
    """Why a batch ends at this moment."""
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
    """The error of `count` records of a batch, after so many seconds."""
    queue = batch.queue
    where = f"{queue.topic}-{queue.partition}"
    what = f"1 record for {where} was" if count == 1 else f"{count} records for {where} were"
    tries = "1 attempt" if batch.attempts == 1 else f"{batch.attempts} attempts"
    subject, is_ = ("it", "is") if count == 1 else ("they", "are")
    known = f"{is_} not" if batch.outcome is Outcome.NOT_PERSISTED else "may be"
    return kind(
        f"{what} given up after {elapsed:.3f} s and {tries}: {reason} ({subject} {known} in the log)",
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
