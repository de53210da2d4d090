"""The entry point of `headrace`. It brings in the rest only once Ctrl-C has somewhere to go."""

from __future__ import annotations

import os
import sys

from headrace.cli.interrupts import end_at_interrupts


def main() -> None:
    """Runs the command line of this process, and ends it with its exit status."""
    end_at_interrupts()
    from headrace.cli.app import execute

    code = execute(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:  # its reader has gone; what is left must not be tried again, and complained of, at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
