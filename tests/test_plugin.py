"""The pytest plugin as other projects meet it, and the check of this project's own conftest."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import aioproducer.testing.plugin as plugin_module

ROOT = Path(plugin_module.__file__).parents[2]

# Of an installed package, pytest finds the plugin by itself.
REGISTER = """
    def pytest_configure(config):
        if not config.pluginmanager.hasplugin("aioproducer"):
            from aioproducer.testing import plugin
            config.pluginmanager.register(plugin, "aioproducer")
"""


def run_pytest(directory, *options, **environment):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "--strict-markers", "-p", "no:cacheprovider", *options],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    ).stdout


def write(file, text):
    file.write_text(textwrap.dedent(text))


async def test_embedded_cluster_is_up(kafka_cluster):
    host, _, port = kafka_cluster.bootstrap_servers.partition(":")

    assert host == "127.0.0.1"
    assert int(port) > 0


def test_fixtures_work_in_strict_mode_too(tmp_path):
    write(tmp_path / "conftest.py", REGISTER)
    write(
        tmp_path / "test_strict.py",
        """
        import pytest

        @pytest.mark.asyncio
        async def test_cluster(kafka_cluster):
            assert kafka_cluster.bootstrap_servers

        @pytest.mark.apache
        def test_marker_is_known():
            pass
        """,
    )

    told = run_pytest(tmp_path, "-o", "asyncio_mode=strict")

    assert "2 passed" in told, told


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 error")])
def test_missing_extra_skips_except_in_ci(tmp_path, ci, outcome):
    missing = """
    from aioproducer.testing import apache

    def java_executable():
        raise apache.ApacheKafkaMissingError("no Java here: pip install 'aioproducer[kafka]'")

    apache.java_executable = java_executable
    """
    write(tmp_path / "conftest.py", REGISTER + missing)
    write(tmp_path / "test_missing.py", "def test_broker(apache_kafka): pass")

    told = run_pytest(tmp_path, CI=ci)

    assert outcome in told, told
    assert "no Java here: pip install 'aioproducer[kafka]'" in told


def test_task_that_is_left_behind_fails_the_test(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    write(
        tmp_path / "test_leak.py",
        """
        import asyncio

        async def test_leaves_a_task():
            global task
            task = asyncio.create_task(asyncio.sleep(1000), name="forgotten")

        async def test_leaves_none():
            await asyncio.create_task(asyncio.sleep(0))
        """,
    )

    told = run_pytest(tmp_path, "-o", "asyncio_mode=auto")

    loops = told.count("tasks left behind: ['forgotten")
    assert loops >= 1
    assert f"{2 * loops} passed, {loops} error" in told, told
