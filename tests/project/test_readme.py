"""README.md: its first program runs in an empty environment, it names the two commands, and it stays short."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from aioproducer.testing import EmbeddedCluster

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
[EXAMPLE] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
CONSOLE = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
SITE = "https://github.com/aioproducer/aioproducer/"


@pytest.mark.promise("Docs", "README names the two commands and says how to install")
def test_it_has_at_most_500_words():
    assert 200 < len(README.split()) <= 500


def test_the_example_has_about_ten_lines_and_compiles():
    assert len([line for line in EXAMPLE.splitlines() if line]) <= 10
    assert compile(EXAMPLE, "README.md", "exec")


@pytest.mark.promise("Docs", "README has a quick start that runs")
async def test_the_example_runs_against_an_embedded_cluster(capsys):
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        names: dict = {}
        code = EXAMPLE.replace("localhost:9092", cluster.bootstrap_servers)
        exec(code.replace("asyncio.run(main())", ""), names)
        await names["main"]()

        assert [record.value for record in cluster.records("orders")] == [b'{"item": 7}']
    assert capsys.readouterr().out == "orders 0 0\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree, built in a copy."""
    directory = tmp_path_factory.mktemp("wheel")
    tree = directory / "tree"
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "aioproducer", "*.md", "*.py", "*.toml", "LICENSE"], cwd=ROOT
    )
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "build", "-q", "--wheel", "--no-isolation", "--outdir", directory]
    subprocess.run([*command, tree], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    [built] = directory.glob("*.whl")
    return built


@pytest.mark.promise("Docs", "README has a quick start that runs")
def test_the_commands_and_the_program_run_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    path = os.pathsep.join([str(tmp_path / "venv" / "bin"), os.environ["PATH"]])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {
        "PATH": path
    }
    install, serve = CONSOLE[0].splitlines()
    assert install == "pip install aioproducer"
    subprocess.run(
        ["sh", "-c", install.replace("aioproducer", str(wheel))], cwd=tmp_path, env=environment, check=True
    )
    command = serve.removesuffix(" &").split()
    cluster = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert cluster.stdout.readline().startswith("listening on 127.0.0.1:9092")
        program = tmp_path / "program.py"
        program.write_text(EXAMPLE)
        done = subprocess.run(
            ["python", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        cluster.send_signal(signal.SIGTERM)
        cluster.communicate()

    assert (done.stdout, done.stderr) == ("orders 0 0\n", "")


@pytest.mark.promise("Docs", "README names the two commands and says how to install")
def test_it_names_the_two_commands_right_after_the_example():
    headings = re.findall(r"^## (.*)", README, re.MULTILINE)

    assert headings[0] == "From a checkout: two commands"
    assert re.search(r"^make demo .*\nmake test ", CONSOLE[1], re.MULTILINE)


@pytest.mark.promise("Docs", "README names the two commands and says how to install")
def test_its_links_are_absolute_and_lead_to_files_of_this_tree():
    links = re.findall(r"\]\((.*?)\)", README)
    files = [
        link.removeprefix(SITE).removeprefix("blob/main/").removeprefix("tree/main/")
        for link in links
        if link.startswith(SITE)
    ]

    assert len(links) >= 10
    assert all(link.startswith("https://") for link in links)
    assert [name for name in files if not (ROOT / name).exists()] == []
