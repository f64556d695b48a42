"""Finished seeds of benchmarks that take hours, kept in the repository.

A record is one small file, `docs/benchmarks/records/<benchmark>/<case>-<seed>.json`: the figures that the table shows, a
thinned curve, and which commit on which machine made it when. A command trains only the seeds that have no record and
generates its page and pictures from the records, so a later machine adds what is missing and repeats nothing. Committing a
new record is up to whoever ran the command.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jobs import stopping_together
from reporting import commit, machine

FOLDER = Path("docs/benchmarks/records")
POINTS = 200
"""The points of a curve that are kept, at most."""
# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}

Record = dict[str, Any]
Job = TypeVar("Job")


class Records:
    """The finished seeds of one benchmark."""

    def __init__(self, benchmark: str, folder: Path = FOLDER) -> None:
        self.benchmark = benchmark
        self.folder = folder / benchmark

    def path(self, case: str, seed: int) -> Path:
        return self.folder / f"{case}-{seed}.json"

    def has(self, case: str, seed: int) -> bool:
        return self.path(case, seed).is_file()

    def of(self, case: str) -> list[Record]:
        """All seeds of a case, in their order."""
        found = [json.loads(path.read_text()) for path in self.folder.glob(f"{case}-*.json")]
        return sorted((record for record in found if record["case"] == case), key=lambda record: record["seed"])

    def save(self, case: str, seed: int, figures: dict[str, Any], curve: tuple[Sequence[int], Sequence[float]]) -> None:
        """Keep a seed that was just finished here. `curve` is thinned, so smooth it first."""
        steps, values = thin(*curve)
        record = {
            "benchmark": self.benchmark,
            "case": case,
            "seed": seed,
            **figures,
            "commit": commit(),
            "machine": machine(),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "curve": {"steps": steps, "values": values},
        }
        path = self.path(case, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(record) + "\n")
        unfinished.rename(path)


def trailing_mean(values: Sequence[float], window: int) -> np.ndarray:
    """At each place the mean of the last `window` values, or of all there are by then."""
    total = np.cumsum(np.insert(np.asarray(values, float), 0, 0.0))
    ends = np.arange(1, len(total))
    begins = np.maximum(ends - window, 0)
    return np.asarray((total[ends] - total[begins]) / (ends - begins))


def thin(steps: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """At most POINTS points of a curve, evenly spaced, first and last among them."""
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
    return [int(steps[i]) for i in chosen], [round(float(values[i]), 4) for i in chosen]


def interval(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the mean; NaN for a single value."""
    n = len(values)
    return float("nan") if n < 2 else T95.get(n - 1, 1.96) * float(np.std(values, ddof=1)) / n**0.5


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The mean ± its interval; the value alone when there is one, a dash when there is none."""
    if not values:
        return "-"
    half = interval(values)
    beside = "" if np.isnan(half) else f" ± {half:,.{digits}f}"
    return f"{np.mean(values):,.{digits}f}{beside}"


def origins(records: Iterable[Record]) -> list[str]:
    """Where figures come from, a paragraph for each commit and machine with the dates between which it worked."""
    dates: dict[tuple[str, str], list[str]] = {}
    for record in records:
        dates.setdefault((record["commit"], record["machine"]), []).append(record["date"])
    lines = [
        f"Commit {made_by}, {where}, {' to '.join(sorted({min(days), max(days)}))}."
        for (made_by, where), days in sorted(dates.items())
    ]
    return "\n\n".join(lines).split("\n")  # a paragraph each


def options(about: str | None, work: str) -> argparse.ArgumentParser:
    """The flags that every such command has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="train seeds 1 to this; 0 only writes the page")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, one core each")
    parser.add_argument("--work", type=Path, default=Path(work), help="unfinished runs and their checkpoints")
    parser.add_argument("--records", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="where page and pictures go")
    return parser


def work_through(jobs: Sequence[Job], do: Callable[[Job], str], report: Callable[[], object], at_a_time: int) -> None:
    """Do all jobs. `do` returns what to say of a finished one; `report` brings the page up to date after each."""
    began = time.monotonic()
    with stopping_together(), ThreadPoolExecutor(at_a_time) as pool:
        for done, future in enumerate(as_completed([pool.submit(do, job) for job in jobs]), 1):
            print(f"[{done}/{len(jobs)}, {time.monotonic() - began:.0f} s] {future.result()}", flush=True)
            report()
