"""The environment of cells: a cell is a function that checks one behaviour of Kafka 4.3's brokers in transactions.

Its name describes the behaviour, which holds for transactions v1 (transaction.version=1), for v2, or for both. Each
cell has its own transactional id, group, and topic with three partitions, on any cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from aioproducer.protocol.error_codes import ErrorCode
from tests.support.raw_client import RawClient
from tests.support.raw_transactions import Identity, Transactions

OK = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
OTHER_PRODUCER = ErrorCode.INVALID_PRODUCER_ID_MAPPING
INVALID_STATE = ErrorCode.INVALID_TXN_STATE
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Stage(Transactions):
    """The producer, topic and group that a cell uses."""

    def __init__(self, client: RawClient, tv: int, topic: str, name: str, group: str) -> None:
        super().__init__(client, topic=topic, name=name, group=group)
        self.tv = tv
        """The finalized level of transaction.version."""
        self.produce_version = 12 if tv == 2 else 11
        self.end_version = 5 if tv == 2 else 4
        self.commit_version = 5 if tv == 2 else 4

    async def begin(self, *partitions: int) -> Identity:
        """Open a transaction with one record in each of these partitions (only 0 by default); return its producer."""
        producer = await self.init()
        await self.write_first(producer, *(partitions or (0,)))
        return producer

    async def write_first(self, producer: Identity, *partitions: int) -> None:
        """Open a transaction with one record in each of these partitions."""
        if self.tv == 1:
            await self.added(producer, *partitions)
        for partition in partitions:
            assert await self.write(producer, 0, b"first", partition=partition) == OK

    async def write(self, producer: Identity, sequence: int, *values: bytes, partition: int = 0) -> int:
        """Produce in the version that clients use with this transaction.version."""
        return await self.produce(
            producer, sequence, *values, version=self.produce_version, partition=partition
        )

    async def commit(self, producer: Identity) -> Identity:
        """Commit with the EndTxn version of this transaction.version; return the producer's new identity."""
        return await self._ended(producer, True)

    async def abort(self, producer: Identity) -> Identity:
        """Abort; otherwise the same as `commit`."""
        return await self._ended(producer, False)

    async def _ended(self, producer: Identity, commit: bool) -> Identity:
        after = await self.end(producer, commit=commit, version=self.end_version)
        assert after.error == OK
        # A repeated request is answered only after the markers are written.
        again = await self.end(producer, commit=commit, version=self.end_version)
        assert again == after
        return after if self.tv == 2 else producer


Cell: TypeAlias = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """A cell and the levels of transaction.version for which it holds."""

    play: Cell
    levels: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.play.__name__


def collector(cells: list[Case]) -> Callable[..., Callable[[Cell], Cell]]:
    """Return a decorator that collects cells: `@cell()`, or `@cell(2)` for cells that hold only with v2."""

    def cell(*levels: int) -> Callable[[Cell], Cell]:
        def collect(play: Cell) -> Cell:
            cells.append(Case(play, levels or (1, 2)))
            return play

        return collect

    return cell


def named(cells: list[Case]) -> list[object]:
    """The cells, each once per level for which it holds, as parameters for a test."""
    return [pytest.param(case, level, id=f"{case.name}-v{level}") for case in cells for level in case.levels]
