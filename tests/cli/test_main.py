"""The entry point: without the extra it says what to install, and Ctrl-C never causes a traceback."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from aioproducer.cli import main
from tests.support.commands import ROOT, run


@pytest.mark.promise("Command line", "without the extra `cli`, the command prints what to install")
@pytest.mark.parametrize("package", main.PACKAGES)
def test_without_the_extra_the_command_names_it(package):
    script = f"""
import sys
sys.modules[{package!r}] = None
from aioproducer.cli.main import main
sys.exit(main())
"""

    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, cwd=ROOT
    )

    assert ended.returncode == 2
    assert ended.stderr == (
        f"The aioproducer command requires the {package} package, which is not installed; run "
        "pip install 'aioproducer[cli]'\n"
    )


def test_the_extra_lists_the_packages_and_the_script_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert sorted(name.partition(">")[0] for name in project["optional-dependencies"]["cli"]) == sorted(
        main.PACKAGES
    )
    assert project["scripts"] == {"aioproducer": "aioproducer.cli.main:main"}


def test_a_missing_module_of_another_package_is_not_hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "aioproducer.cli.app", None)

    with pytest.raises(ModuleNotFoundError):
        main.main()


def test_ctrl_c_before_the_loop_runs_ends_with_130(monkeypatch):
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("aioproducer.cli.app.run", interrupted)

    assert main.main() == 130


async def test_the_package_is_a_command():
    ended = await run("--version")

    assert ended == (0, "0.1.0\n", "")
