"""Runs the `aioproducer` command as `python -m aioproducer`."""

import sys

from aioproducer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
