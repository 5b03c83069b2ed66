"""Tests of the receipt of send_many for threads: results and errors by row, without await."""

from __future__ import annotations

import pytest

from aioproducer import SendManyError
from aioproducer.blocking import Producer
from aioproducer.blocking.receipt import Receipt
from tests.support.docs_runner import Docs

LONG = 10.0


@pytest.fixture(scope="module")
def servers():
    with Docs() as docs:
        docs.topic("rows", 2)
        yield docs.cluster.bootstrap_servers


def test_each_row_has_its_place_when_the_receipt_has_its_result(servers):
    with Producer(servers) as producer:
        receipt = producer.send_many("rows", [b"1", b"2", b"3"], partitions=[0, 1, 0])

        assert isinstance(receipt, Receipt)
        assert receipt.result(LONG) is receipt
        assert receipt.done()
        assert (len(receipt), receipt.topic) == (3, "rows")
        assert [receipt.partition(row) for row in range(3)] == [0, 1, 0]
        assert sum(len(offsets) for found in receipt.offsets.values() for offsets in found) == 3
        assert receipt.delivery(1).result(LONG).partition == 1
        assert receipt.errors == {}


def test_wait_leaves_the_errors_to_the_caller_and_result_raises_them(servers):
    with Producer(servers, max_request_size=1024) as producer:
        receipt = producer.send_many("rows", [b"1", bytes(5000)])

        assert set(receipt.wait(LONG).errors) == {1}
        with pytest.raises(SendManyError):
            receipt.result(LONG)
