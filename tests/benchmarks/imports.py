"""Where the time of a start goes: the imports of the supervisor and of algorithms, by the package that causes them.

    python tests/benchmarks/imports.py [--page docs/benchmarks/imports.md]

Each module is imported in a fresh Python with `-X importtime`, three times with warm caches; the quickest counts. A package
pays for what it imports first: torch for all that torch alone brings in. What is below a hundredth of the whole is left out.
The supervisor must not import what only algorithms need: torch, gymnasium, jax.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from jobs import end_by_exception, saying_when_stopped
from reporting import table_page

MODULES = {
    "the supervisor (`cleanrl_worker.cli`)": "cleanrl_worker.cli",
    "the sidecar": "cleanrl_worker.sidecar",
    "the operator": "cleanrl_operator.main",
    "ppo": "cleanrl_worker.algorithms.ppo",
    "dqn": "cleanrl_worker.algorithms.dqn",
    "ppo_atari": "cleanrl_worker.algorithms.ppo_atari",
    "pqn_atari_envpool": "cleanrl_worker.algorithms.pqn_atari_envpool",
    "dqn_jax": "cleanrl_worker.algorithms.dqn_jax",
}
OURS = ("cleanrl_worker", "cleanrl_operator", "cleanrl_protocol")
LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|(\s+)(\S+)")


def times(module: str) -> tuple[float, dict[str, float]]:
    """Milliseconds of the whole import, and of each package that paid for some of it."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        raise SystemExit(f"import {module} failed:\n{done.stderr[-1000:]}")
    entries = [
        (len(match[3]) // 2, match[4].partition(".")[0], int(match[1]) / 1000)
        for line in done.stderr.splitlines()
        if (match := LINE.match(line))
    ]
    # Whoever imports is printed after what it imports, one level further out. Read backwards, the path is known.
    owners: list[str] = []
    spent: dict[str, float] = defaultdict(float)
    for depth, package, own in reversed(entries):
        del owners[depth - 1 :]
        payer = next((owner for owner in owners if owner not in OURS and owner != ""), "")
        pays = payer or package
        owners.append(package if not _of_python(package) else "")
        if pays in OURS:
            pays = "ours"
        spent["Python's own" if _of_python(pays) else pays] += own
    return sum(spent.values()), dict(spent)


def _of_python(package: str) -> bool:
    return package in sys.stdlib_module_names or package in ("encodings", "sitecustomize", "site")


def quickest(module: str, rounds: int) -> tuple[float, dict[str, float]]:
    times(module)  # fills the caches
    return min((times(module) for _ in range(rounds)), key=lambda found: found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", type=Path, help="a file for the table in Markdown")
    args = parser.parse_args()
    end_by_exception()
    rows = []
    for name, module in MODULES.items():
        total, spent = quickest(module, args.rounds)
        parts = [
            f"{package} {ms:,.0f}"
            for package, ms in sorted(spent.items(), key=lambda item: -item[1])
            if ms > total / 100
        ]
        rows.append((name, f"{total:,.0f}", ", ".join(parts)))
        print("  ".join(rows[-1]), flush=True)
    if args.page:
        about = (
            "Milliseconds of imports, by the package that causes them. `python tests/benchmarks/imports.py --page "
            "docs/benchmarks/imports.md` measures again and says how; [starts](starts.md) has whole launches."
        )
        args.page.write_text(table_page("Where the time of a start goes", about, ("what", "ms", "of which"), rows))


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))
