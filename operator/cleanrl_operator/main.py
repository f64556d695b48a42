"""Entry point of the operator's program."""

from __future__ import annotations

import sys


def main() -> int:
    """Say plainly that this version has no operator yet; the worker and the local cluster stand on their own."""
    sys.stderr.write("cleanrl-operator: not in this version yet. Train with `cleanrl-worker --help` instead.\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
