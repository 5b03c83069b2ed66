"""`python -m aioproducer`: the same as the command `aioproducer`."""

import sys

from aioproducer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
