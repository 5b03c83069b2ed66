"""A stamp changes with its file, and with the files directly in its directory."""

from __future__ import annotations

import itertools
import os

import pytest

from aioproducer.security.file_stamps import stamp


@pytest.mark.parametrize("change", ["written", "replaced", "removed", "linked"])
@pytest.mark.parametrize("in_directory", [False, True])
def test_a_stamp_changes_with_its_file_and_only_then(tmp_path, change, in_directory):
    directory = tmp_path / "trusted"
    directory.mkdir()
    file = directory / "ca.pem"
    file.write_text("one")
    path = str(directory if in_directory else file)
    before = stamp(path)
    assert stamp(path) == before

    if change == "written":
        file.write_text("other")
    else:
        file.unlink()
        (tmp_path / "new.pem").write_text("one")
        if change == "replaced":
            (tmp_path / "new.pem").rename(file)
        if change == "linked":
            file.symlink_to(tmp_path / "new.pem")

    assert stamp(path) != before


def test_the_content_of_a_subdirectory_is_left_out(tmp_path):
    (tmp_path / "old").mkdir()
    file = tmp_path / "old" / "ca.pem"
    file.write_text("one")
    before = stamp(str(tmp_path))

    file.write_text("other")

    assert stamp(str(tmp_path)) == before


def test_links_to_the_directory_itself_are_not_followed_again_and_again(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / name).symlink_to(".")
    looks = itertools.count(1)
    look = os.stat

    def counted(path, *arguments, **named):
        assert next(looks) < 100
        return look(path, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", counted)
        assert stamp(str(tmp_path)) == stamp(str(tmp_path))


def test_a_missing_file_and_a_link_to_one_have_a_stamp(tmp_path):
    (tmp_path / "ca.pem").symlink_to("missing.pem")
    missing, directory = stamp(str(tmp_path / "ca.pem")), stamp(str(tmp_path))

    (tmp_path / "missing.pem").write_text("one")

    assert stamp(str(tmp_path / "ca.pem")) != missing
    assert stamp(str(tmp_path)) != directory
