"""The resources of one real Kafka and their release."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioproducer.testing.apache import resources
from aioproducer.testing.apache.broker_setup import ApacheBroker
from aioproducer.testing.apache.resources import Resources
from tests.support.apache_processes import descriptors, is_alive, until

ROOT = Path(resources.__file__).parents[3]


@pytest.fixture
def temporary() -> Iterator[Resources]:
    """Return resources with a temporary directory."""
    held = Resources(None)
    yield held
    held.release()


def sleeper(held: Resources) -> int:
    """Start a child process, and return its id."""
    child = held.children.spawn(["sleep", "1000"], directory=held.directory, log=held.directory / "sleep.out")
    return child.pid


def test_releasing_ends_processes_frees_ports_and_removes_the_directory(temporary):
    before = descriptors()
    child = sleeper(temporary)
    temporary.ports.reserve()
    assert descriptors() != before

    temporary.release()

    assert not is_alive(child)
    assert not temporary.directory.exists()
    assert len(descriptors()) < len(before), "sockets or pipes to processes are left"
    temporary.release()  # a second call changes nothing


INTERRUPTED = """
    from aioproducer.testing.apache import resources

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    held = resources.Resources(None)
    (held.directory / "data").write_text("left behind")
    resources.shutil.rmtree = interrupted
    try:
        held.release()
    finally:
        print(held.directory)
"""


async def test_a_second_ctrl_c_during_the_release_leaves_no_directory(tmp_path):
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(INTERRUPTED),
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, errors = await owner.communicate()
    assert b"KeyboardInterrupt" in errors
    assert printed.decode().startswith(str(tmp_path))

    await until(lambda: not list(tmp_path.iterdir()))


def test_a_chosen_directory_is_created_and_stays(tmp_path):
    held = Resources(tmp_path / "a" / "b")
    (held.directory / "data").write_text("kept")

    held.release()

    assert (tmp_path / "a" / "b" / "data").read_text() == "kept"


def test_the_cluster_id_of_a_directory_never_changes(tmp_path):
    ids = []
    for directory in (tmp_path / "one", tmp_path / "one", tmp_path / "other"):
        held = Resources(directory)
        ids.append(held.cluster_id())
        held.release()

    assert ids[0] == ids[1] != ids[2]
    assert len(ids[0]) == 22, "not 16 bytes in base 64 without padding, like Kafka's"


def broker_with_log(directory: Path) -> ApacheBroker:
    """A broker that has left data and a log."""
    broker = ApacheBroker(0, directory / "broker-0", {}, {})
    broker.data.mkdir(parents=True)
    (broker.data / "meta.properties").write_text("data")
    (directory / "broker-0" / "broker.log").write_text("what happened")
    return broker


def test_logs_are_kept_without_the_data_and_the_message_names_their_directory(temporary):
    broker, child = broker_with_log(temporary.directory), sleeper(temporary)

    told = temporary.release_but_logs([broker])

    assert told == f"Kafka's logs are kept in {temporary.directory}"
    assert not is_alive(child)
    assert not broker.data.exists()
    assert [path.read_text() for path in temporary.directory.glob("**/*.log")] == ["what happened"]
    temporary._discard_directory()


def test_data_in_a_chosen_directory_are_kept_with_the_logs(tmp_path):
    held = Resources(tmp_path)
    broker = broker_with_log(tmp_path)

    held.release_but_logs([broker])

    assert (broker.data / "meta.properties").exists()


def test_without_a_log_nothing_is_kept_and_there_is_no_message(temporary):
    assert temporary.release_but_logs([]) is None
    assert not temporary.directory.exists()


def test_a_directory_that_can_not_be_created_is_an_error_and_existing_files_stay(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match="file"):
        Resources(tmp_path / "file" / "below")
    assert (tmp_path / "file").exists()
