"""`python -m tests.faults.checker RECORD.json URL [--prefix headrace]`: exits 1 for any violation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.faults.checker.check import check
from tests.faults.checker.record import read_record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("url", help="redis://…, unix://… or kafka://HOST:PORT")
    parser.add_argument("--prefix", default="headrace")
    options = parser.parse_args()
    violations = check(read_record(options.record), options.url, options.prefix)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
