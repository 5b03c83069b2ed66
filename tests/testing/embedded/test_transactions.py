"""Transactions of the embedded cluster: what it answers, cell by cell, and what consumers are given."""

from __future__ import annotations

import pytest

from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS
from tests.support.raw_client import RawClient, address
from tests.support.transaction_cells import CELLS
from tests.support.transaction_stage import Case, Stage, named


@pytest.mark.parametrize(("case", "tv"), named(CELLS))
async def test_cell(case: Case, tv: int):
    async with (
        EmbeddedCluster(topics={"t": 3}, versions="4.3", transaction_version=tv) as cluster,
        RawClient(address(cluster)) as client,
    ):
        cluster.transactions.sweep_interval = 20 * MS
        stage = Stage(client, tv, "t", "txn", "group")
        await stage.find()
        await case.play(stage)
