"""The source distribution can be built, tested and read without git, and indexes accept its metadata."""

from __future__ import annotations

import ast
import contextlib
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
NOT_DISTRIBUTED = (".ci/", ".github/", ".gitignore", ".readthedocs.yaml")
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
def test_the_source_distribution_has_the_files_that_git_tracks(sdist):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = {name for name in tracked.splitlines() if not name.startswith(NOT_DISTRIBUTED)}
    with tarfile.open(sdist[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}

    found = {name for name in names if ".egg-info/" not in name} - ADDED_BY_SETUPTOOLS
    assert found == expected


@pytest.mark.slow
def test_the_build_prints_no_warning(sdist):
    assert not [line for line in sdist[1].splitlines() if "warning" in line.lower()]


@pytest.mark.slow
def test_indexes_accept_the_metadata(sdist):
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", sdist[0]],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


LOOKS = """
import pkgutil, site, sys
site.addsitedir(sys.argv[1])
print([module.name for module in pkgutil.iter_modules() if module.name.startswith("pyspark_")])
"""
"""A script that lists the data sources as Spark does (pyspark/sql/worker/lookup_data_sources.py)."""


@pytest.mark.promise("Spark", "an editable install registers the data source, too")
def test_an_editable_install_lists_the_module_that_spark_looks_for(tmp_path):
    """An install with a finder could import the module, but not list it. This test leaves out setup.py,
    so it compiles nothing."""
    project, wheels, installed = (tmp_path / name for name in ("project", "wheels", "installed"))
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package in settings["packages"]:
        folder = project / package.replace(".", "/")
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE", "pyspark_aioproducer.py"):
        shutil.copy(ROOT / name, project)
    wheels.mkdir()
    build = "import sys; from setuptools.build_meta import build_editable as build; print(build(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", build, wheels], cwd=project, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    [wheel] = wheels.iterdir()
    shutil.unpack_archive(wheel, installed, "zip")

    looked = subprocess.run(
        [sys.executable, "-I", "-c", LOOKS, installed], capture_output=True, text=True, check=True
    )

    assert looked.stdout.strip() == "['pyspark_aioproducer']"


def test_all_addresses_of_the_project_begin_with_that_of_its_source_or_documentation():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    source = project["urls"]["Source"]

    assert all(url.startswith((source, project["urls"]["Documentation"])) for url in project["urls"].values())
    readme = (ROOT / "README.md").read_text()
    assert f"]({source}/" in readme


def imported_by_the_core_of_the_tests() -> dict[str, str]:
    """Return each module that the tests in core.txt import when they are collected, with a file that imports it."""
    left = {ROOT / "tests" / "conftest.py"}
    for line in (ROOT / "tests" / "core.txt").read_text().split():
        left |= {ROOT / line} if line.endswith(".py") else {*(ROOT / line).rglob("*.py")}
    found: dict[str, str] = {}
    seen: set[Path] = set()
    while left:
        path = left.pop()
        seen.add(path)
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                found.setdefault(name.split(".")[0], str(path.relative_to(ROOT)))
                file = ROOT.joinpath(*name.split("."))
                left |= {
                    part
                    for part in (file.with_suffix(".py"), file.parent.with_suffix(".py"))
                    if part.is_file() and part.is_relative_to(ROOT / "tests")
                } - seen
    return found


def with_requirements(requirements: Iterable[str]) -> set[str]:
    """Return the names of distributions, and of all distributions that they require on this machine."""
    found: set[str] = set()
    left = [Requirement(text) for text in requirements]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        with contextlib.suppress(metadata.PackageNotFoundError):
            left += [Requirement(text) for text in metadata.requires(name) or ()]
    return found


def test_the_core_of_the_tests_imports_only_what_its_group_installs():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = with_requirements(settings["dependency-groups"]["core"] + settings["project"]["dependencies"])
    providers = metadata.packages_distributions()
    own = {"aioproducer", "tests", *sys.stdlib_module_names}

    missing = {
        module: file
        for module, file in imported_by_the_core_of_the_tests().items()
        if module not in own and not {canonicalize_name(one) for one in providers.get(module, [])} & installed
    }

    assert missing == {}
