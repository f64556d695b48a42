"""Environment steps per CPU second beside upstream CleanRL and Stable-Baselines3, in the same run.

    python tests/benchmarks/peers.py [--only ppo dqn] [--peers CleanRL] [--rounds 3] [--seconds 8]
                                     [--page docs/benchmarks/peers.md]

CleanRL's release runs as it is (peer_cleanrl.py), Stable-Baselines3 with the same networks, batches and schedule
(peer_sb3.py). Ours and the peers take turns on one thread each, so that what else the machine does meets all; the figures are
medians over the rounds. What comes before learning starts does not count, for anybody. `python tests/benchmarks/throughput.py`
measures all algorithms, without a peer.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import peer_cleanrl
import peer_sb3
import throughput
from jobs import end_by_exception, saying_when_stopped
from reporting import table_page

Rate = Callable[[throughput.Row, int, str], float]
"""Steps per CPU second of a row, over about so many steps after learning starts, in a folder."""


@dataclass(frozen=True)
class Peer:
    """Somebody else's training: what it is called, which algorithms it has, how it is installed and measured."""

    name: str
    algos: tuple[str, ...]
    install: Callable[[], Path]
    measure: Callable[[throughput.Row, int, Path, str], float]


PEERS = {
    peer.name: peer
    for peer in (
        Peer(peer_cleanrl.NAME, tuple(peer_cleanrl.SCRIPTS), peer_cleanrl.install, peer_cleanrl.measure),
        Peer(peer_sb3.NAME, tuple(peer_sb3.PEERS), peer_sb3.install, peer_sb3.measure),
    )
}
ALGOS = tuple(row.algo for row in throughput.ROWS if any(row.algo in peer.algos for peer in PEERS.values()))
COLUMNS = ("algorithm", "environment", "peer", "ours", "the peer's", "times", "least and most")
WIDTHS = (24, 14, 18, 10, 10, 6, 0)


def ours(row: throughput.Row, steps: int, folder: str) -> float:
    """Our steps per CPU second."""
    found = throughput.measure(row, row.skip + steps, folder)
    return found["steps"] / found["cpu"]


def compare(row: throughput.Row, rounds: int, seconds: float, rates: dict[str, Rate]) -> list[tuple[str, ...]]:
    """A row for each peer: all by turns. `rates` has ours under the name ''."""
    with tempfile.TemporaryDirectory() as folder:
        # A short one of each tells how many steps fill the seconds.
        lengths = {name: int(seconds * rate(row, row.guess, folder)) for name, rate in rates.items()}
        found = [{name: rate(row, lengths[name], folder) for name, rate in rates.items()} for _ in range(rounds)]
    table: list[tuple[str, ...]] = []
    for name in rates:
        if not name:
            continue
        times = [each[""] / each[name] for each in found]
        table.append(
            (
                row.algo,
                row.env_id,
                name,
                f"{statistics.median(each[''] for each in found):,.0f}",
                f"{statistics.median(each[name] for each in found):,.0f}",
                f"{statistics.median(times):.1f}",
                f"{min(times):.1f} to {max(times):.1f}",
            )
        )
    return table


def show(cells: tuple[str, ...]) -> None:
    """A line of the table as it is printed."""
    print(" ".join(f"{cell:<{width}}" for cell, width in zip(cells, WIDTHS, strict=True)).rstrip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=ALGOS, default=[*ALGOS])
    parser.add_argument("--peers", nargs="*", choices=[*PEERS], default=[*PEERS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="CPU seconds of each measurement, about")
    parser.add_argument("--page", type=Path, help="a file for the table in Markdown")
    args = parser.parse_args()
    end_by_exception()
    packages = {name: PEERS[name].install() for name in args.peers}
    show(COLUMNS)
    table = []
    for row in throughput.ROWS:
        if row.algo not in args.only:
            continue
        rates: dict[str, Rate] = {"": ours}
        for name in args.peers:
            if row.algo in PEERS[name].algos:
                rates[name] = partial(_theirs, PEERS[name], packages[name])
        for cells in compare(row, args.rounds, args.seconds, rates):
            table.append(cells)
            show(cells)
    if args.page:
        about = (
            f"Steps per CPU second on one thread, ours and each peer's by turns: medians of {args.rounds} rounds of about "
            f"{args.seconds:g} CPU seconds, `times` with its extremes; what comes before learning starts is left out. CleanRL "
            f"{peer_cleanrl.VERSION} is the release's scripts, not edited, with gym 0.23 or gymnasium 0.28 as they import "
            f"them, and the torch of ours; Stable-Baselines3 {peer_sb3.VERSION} has CleanRL's defaults (layers, batches, how "
            "often it learns). `python tests/benchmarks/peers.py --page docs/benchmarks/peers.md` measures again."
        )
        args.page.write_text(table_page("Beside upstream CleanRL and Stable-Baselines3", about, COLUMNS, table))


def _theirs(peer: Peer, packages: Path, row: throughput.Row, steps: int, folder: str) -> float:
    return peer.measure(row, steps, packages, folder)


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))
