"""The file of failed records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aioproducer import DeliveryError
from aioproducer.cli.exits import UsageError
from aioproducer.cli.failed_file import FailedFile
from aioproducer.cli.rows import InputRows


def test_each_failed_record_is_a_line_with_its_row_error_and_outcome(tmp_path):
    file = FailedFile(tmp_path / "failed")

    file.write(InputRows([4, 5], 5, [b"a", b"b"], partitions=2), {1: DeliveryError("no")})
    file.close()

    assert json.loads(file.path.read_text()) == {
        "value": "b",
        "partition": 2,
        "row": 5,
        "error": "no",
        "outcome": "unknown",
    }


def test_no_file_is_created_if_nothing_fails(tmp_path):
    FailedFile(tmp_path / "failed").close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["", "no/such/directory/file", "used"])
def test_a_file_that_cannot_be_written_is_rejected_immediately(tmp_path, path):
    (tmp_path / "used").write_text("{}\n")

    with pytest.raises(UsageError, match="--failed "):
        FailedFile(tmp_path / path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_an_error():
    file = FailedFile(Path("/dev/full"))

    with pytest.raises(OSError, match="No space left"):
        file.write(InputRows([1], 1, [b"a"]), {0: DeliveryError("no")})
    file.close()
