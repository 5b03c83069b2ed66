"""Transactional calls in the wrong state raise the error of the state, even if their arguments are malformed."""

from __future__ import annotations

import pytest

from aioproducer.errors import IllegalStateError, InvalidRecordError, TransactionAbortableError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from tests.support.producing import error_of, quick_producer
from tests.transactions.test_calls import transactional

CALLS = {
    "offsets without a group": lambda producer: producer.send_offsets_to_transaction({("t", 0): 1}, None),
    "offsets that are a str": lambda producer: producer.send_offsets_to_transaction("t", "g"),
    "partitions that are a str": lambda producer: producer.export_transaction("t"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_the_state_error_comes_before_errors_of_the_arguments(call):
    """Correct arguments would not help: a transaction has to be begun, or aborted, first."""
    async with transactional(2) as (cluster, producer):
        assert isinstance(await error_of(call(producer)), IllegalStateError)
        await producer.begin_transaction()
        assert isinstance(await error_of(call(producer)), InvalidRecordError)
        cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.INVALID_RECORD)
        await error_of(producer.send_and_wait("t", b"1", partition=0))

        assert isinstance(await error_of(call(producer)), TransactionAbortableError)


async def test_without_a_transactional_id_the_state_error_also_comes_first():
    async with EmbeddedCluster() as cluster, quick_producer(cluster) as producer:
        for call in (*CALLS.values(), lambda producer: producer.committed(None, "t")):
            error = await error_of(call(producer))
            assert isinstance(error, IllegalStateError)
            assert "transactional_id" in str(error)
