"""Builds the compiled modules. All other metadata is in pyproject.toml; setuptools calls its table for extension
modules experimental."""

import sys

from setuptools import Extension, setup

is_windows = sys.platform == "win32"
"""Windows needs no options: MSVC optimizes by default, and its math functions are part of the C runtime."""

OPTIONS = {
    "extra_compile_args": [] if is_windows else ["-O2"],
    "libraries": [] if is_windows else ["m"],
}

# Cython's compiler directives are in the .pyx files themselves (`# cython: ...`).
setup(
    ext_modules=[
        Extension(
            "aioproducer.records._record_path",
            ["aioproducer/records/_record_path.pyx"],
            depends=[
                f"aioproducer/records/{name}"
                for name in (
                    "_callbacks.pxi",
                    "_columns.pxi",
                    "_gathering.pxi",
                    "_lines.pxi",
                    "_user_code.pxi",
                    "_portable.h",
                )
            ],
            **OPTIONS,
        ),
        Extension(
            "aioproducer.protocol._request_path", ["aioproducer/protocol/_request_path.pyx"], **OPTIONS
        ),
    ]
)
