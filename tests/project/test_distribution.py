"""The source distribution can be built, tested and read without git, and the metadata is what indexes accept."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_DISTRIBUTED = (".ci/", ".github/", ".gitignore")
ADDED_BY_SETUPTOOLS = {"PKG-INFO", "setup.cfg"}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    place = tmp_path_factory.mktemp("sdist")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", place, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    [path] = place.glob("*.tar.gz")
    return path, built.stdout + built.stderr


@pytest.mark.slow
def test_the_source_distribution_has_what_git_tracks(sdist):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = {name for name in tracked.splitlines() if not name.startswith(NOT_DISTRIBUTED)}
    with tarfile.open(sdist[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}

    found = {name for name in names if ".egg-info/" not in name} - ADDED_BY_SETUPTOOLS
    assert found == expected


@pytest.mark.slow
def test_the_build_prints_no_warning(sdist):
    lines = [line for line in sdist[1].splitlines() if "warning" in line.lower()]

    assert not [
        line for line in lines if "no previously-included files" not in line
    ]  # MANIFEST.in excludes more


@pytest.mark.slow
def test_indexes_accept_the_metadata(sdist):
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", sdist[0]],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_all_addresses_of_the_project_are_the_same_two():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    source = project["urls"]["Source"]

    assert all(url.startswith((source, project["urls"]["Documentation"])) for url in project["urls"].values())
    readme = (ROOT / "README.md").read_text()
    assert f"]({source}/" in readme
