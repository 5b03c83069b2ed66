"""aioproducer/records/_portable.h and the other C of the package: the lines that MSVC compiles, and the
branches that this machine's compiler does not compile."""

from __future__ import annotations

import ctypes
import random
import re
import shlex
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "aioproducer"
HEADER = PACKAGE / "records" / "_portable.h"

MSVC = {"_MSC_VER", "_WIN32", "_M_X64"}
"""Macros that MSVC defines. It defines neither __GNUC__ nor __clang__ nor __SIZEOF_INT128__."""
ONLY_GCC = re.compile(
    r"__atomic_|__builtin_|__sync_|__attribute__|__int128|__extension__|clock_gettime|unistd\.h"
)
"""Extensions of GCC and Clang, and POSIX functions. mingw accepts them, so a cross-compilation does not find them."""


def seen_by(source: str, defined: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of C, with their numbers, that remain when only the macros `defined` are defined."""
    including = [True]
    taken = [True]
    for number, line in enumerate(re.sub(r"/\*.*?\*/", _newlines, source, flags=re.S).splitlines(), 1):
        directive = re.match(r"\s*#\s*(ifdef|ifndef|if|elif|else|endif)\b(.*)", line)
        if directive is None:
            if all(including):
                yield number, line
            continue
        word, condition = directive[1], directive[2]
        if word == "endif":
            including.pop()
            taken.pop()
            continue
        if word in ("elif", "else"):
            holds = not taken[-1] and (word == "else" or _holds(condition, defined))
            including[-1] = holds
            taken[-1] = taken[-1] or holds
            continue
        holds = (
            _holds(condition, defined)
            if word == "if"
            else (condition.strip() in defined) == (word == "ifdef")
        )
        including.append(holds)
        taken.append(holds)
    assert len(including) == 1, "an #if has no #endif"


def _newlines(comment: re.Match[str]) -> str:
    return "\n" * comment[0].count("\n")


def _holds(condition: str, defined: set[str]) -> bool:
    """Evaluate `defined(A) || !defined(B) && C`: a macro without `defined` is false unless it is defined."""
    names = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", r"\1", condition)
    python = re.sub(r"!(?!=)", " not ", names.replace("&&", " and ").replace("||", " or "))
    assert re.fullmatch(r"(?:[A-Za-z_]\w*|[\s()])+", python), f"cannot evaluate #if {condition}"
    words = set(re.findall(r"\w+", python)) - {"and", "or", "not"}
    return bool(eval(python, {"__builtins__": {}}, {word: word in defined for word in words}))


def c_sources() -> list[Path]:
    """Return the headers, and the Cython files that contain C."""
    return sorted(path for end in ("pyx", "pxi", "pxd", "h", "c.in") for path in PACKAGE.rglob(f"*.{end}"))


def not_for_msvc(source: str) -> list[str]:
    return [
        f"line {number}: {line.strip()}" for number, line in seen_by(source, MSVC) if ONLY_GCC.search(line)
    ]


@pytest.mark.promise("Packaging", "the C code uses no extension that MSVC lacks")
@pytest.mark.parametrize("path", c_sources(), ids=lambda path: path.name)
def test_no_extension_of_gcc_is_seen_by_msvc(path):
    assert not_for_msvc(path.read_text()) == []


def test_the_package_has_c_for_both_kinds_of_compiler():
    gcc = "\n".join(line for _, line in seen_by(HEADER.read_text(), {"__GNUC__", "__SIZEOF_INT128__"}))
    msvc = "\n".join(line for _, line in seen_by(HEADER.read_text(), MSVC))

    assert set(ONLY_GCC.findall(gcc)) == {"__atomic_", "__builtin_", "__int128", "clock_gettime"}
    assert {path.name for path in c_sources()} >= {"_portable.h", "_record_path.pyx", "_columns.pxi"}
    for name in re.findall(r"define (aioproducer_\w+)\(|static inline \w+ (aioproducer_\w+)\(", gcc):
        assert re.search(rf"\b{name[0] or name[1]}\(", msvc), f"MSVC sees no {name}"


@pytest.mark.parametrize(
    "source",
    [
        "__atomic_load_n(flag, __ATOMIC_ACQUIRE);",
        "#ifdef _WIN32\nclock_gettime(CLOCK_REALTIME, &now);\n#endif",
        "#ifndef _MSC_VER\n#else\n__builtin_prefetch(at);\n#endif",
        "#if defined(__GNUC__) || defined(_MSC_VER)\nunsigned __int128 wide;\n#endif",
        "#ifdef __clang__\n#elif defined(_WIN32)\n__builtin_prefetch(at);\n#else\n#endif",
        "#ifdef _WIN32\n#ifdef __GNUC__\n#endif\n__builtin_prefetch(at);\n#endif",
    ],
)
def test_an_extension_that_msvc_sees_is_found(source):
    assert len(not_for_msvc(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "#ifndef _MSC_VER\n__atomic_load_n(flag, __ATOMIC_ACQUIRE);\n#endif",
        "#ifdef _WIN32\nGetSystemTime();\n#else\nclock_gettime(CLOCK_REALTIME, &now);\n#endif",
        "#if defined(__GNUC__) || defined(__clang__)\n__builtin_prefetch(at);\n#endif",
        "#if defined(__GNUC__)\n#ifdef _WIN32\n__builtin_prefetch(at);\n#endif\n#endif",
        "#ifdef _MSC_VER\n#elif defined(_WIN32)\n__builtin_prefetch(at);\n#else\n__builtin_prefetch(at);\n#endif",
        "/* instead of __builtin_prefetch\n or clock_gettime */",
    ],
)
def test_an_extension_that_msvc_does_not_see_is_allowed(source):
    assert not_for_msvc(source) == []


# ------------------------------------------------------------------------------------------------------ the branches


@pytest.fixture(params=["", "-U__SIZEOF_INT128__"], ids=["with __int128", "without __int128"])
def remainder(request, tmp_path):
    source = tmp_path / "remainder.c"
    source.write_text(
        f'#include "{HEADER}"\n'
        "uint32_t remainder_of(uint32_t value, uint32_t count) {\n"
        "    return aioproducer_remainder(value, count, (uint64_t)-1 / count + 1);\n}\n"
        "int64_t now_ms(void) { return aioproducer_now_ms(); }\n"
    )
    compiler = shlex.split(sysconfig.get_config_var("CC"))
    flags = ["-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC"]
    library = tmp_path / "remainder.so"
    subprocess.run([*compiler, *flags, *request.param.split(), source, "-o", library], check=True)
    return ctypes.CDLL(str(library)).remainder_of


def test_the_remainder_is_exact_with_and_without_128_bits(remainder):
    remainder.restype = ctypes.c_uint32
    remainder.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
    chosen = random.Random(22)
    edges = [0, 1, 2, 3, 2**16 - 1, 2**16, 2**31 - 2, 2**31 - 1]
    values = [*edges, *(chosen.randrange(2**31) for _ in range(300))]
    counts = [
        1,
        2,
        3,
        7,
        12,
        4096,
        10_007,
        2**20,
        2**31 - 1,
        *(chosen.randrange(1, 2**31) for _ in range(100)),
    ]

    wrong = [(v, count) for count in counts for v in values if remainder(v, count) != v % count]

    assert wrong == []
