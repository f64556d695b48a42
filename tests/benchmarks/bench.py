"""All figures that were promised in one table: target, measured, ratio, met or missed and why. `make bench`.

    python tests/benchmarks/bench.py                 run the benchmarks of minutes, and write the table after each
    python tests/benchmarks/bench.py throughput ...  run these
    python tests/benchmarks/bench.py --quick         short forms of the most telling ones, in some 20 minutes; into build/bench
    python tests/benchmarks/bench.py --collect       only write the table, from the records there are

What a benchmark prints is kept as docs/benchmarks/records/bench/NAME.json, with commit, machine, date and load; those of the
operator, chaos and soak keep records of their own (docs/benchmarks/*.json). The table, docs/benchmarks/README.md, is made from
the records alone: figures of several days and commits stand side by side, each named with its own. A promise without a record
is shown as not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_rows import COMMANDS, ROWS, Row
from jobs import saying_when_stopped
from records import Records
from reporting import commit, machine
from robust import interval, iqm, normalised

PROJECT = Path(__file__).resolve().parents[2]
PAGES = PROJECT / "docs" / "benchmarks"
PLOTS = {"Learning": "curriculum.png", "Operator": "operator-growth.png"}
"""What is shown below the table of an area; the curves of scores are linked from theirs."""
RANDOM_RETURNS = {"CartPole-v1": 22.0, "Acrobot-v1": -500.0, "Pendulum-v1": -1230.0}
"""What a random policy gets, about."""


@dataclass(frozen=True)
class Found:
    """A measurement as its record has it."""

    text: str
    number: float | None
    peer: str
    origin: str
    good: bool | None = None
    target: str = ""
    """The record's own, for promises whose target is no number."""


def run(name: str, pages: Path, *, quick: bool = False) -> bool:
    """Run one benchmark, show what it prints, and keep it. Whether it ended well."""
    script, *arguments = COMMANDS[name].quick if quick else COMMANDS[name].arguments
    command = [sys.executable, str(PROJECT / "tests" / "benchmarks" / script)]
    command += [argument.replace("{out}", str(pages)) for argument in arguments]
    print(f"\n== {name}: about {minutes(name, quick):g} min ==", flush=True)
    load = [round(value, 2) for value in os.getloadavg()]
    lines = []
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    record = {
        "benchmark": name, "lines": lines, "exit": process.returncode, "commit": commit(), "machine": machine(), "load": load,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }  # fmt: skip
    if process.returncode and not any(_in_lines(row, lines, "") for row in ROWS if row.benchmark == name):
        print(
            f"{name} ended with {process.returncode} and printed no figure: what was measured before stands", flush=True
        )
        return False
    folder = pages / "records" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return process.returncode == 0


def minutes(name: str, quick: bool) -> float:
    """About how long a benchmark takes."""
    return COMMANDS[name].quick_minutes if quick else COMMANDS[name].minutes


def find(row: Row, pages: Path) -> Found | None:
    """The row's measurement, from the newest record that has it; None when nobody has measured it."""
    parts = pages / f"{row.benchmark}.json"
    if parts.exists():
        return _in_figures(row, json.loads(parts.read_text()))
    kept = pages / "records" / "bench" / f"{row.benchmark}.json"
    if kept.exists() and not row.seeds:
        record = json.loads(kept.read_text())
        origin = f"{record['date']}, {record['commit'][:7]}, load {record['load'][0]:g}"
        if found := _in_lines(row, record["lines"], origin):
            return found
    for page in (pages / f"{row.benchmark}.md", pages / f"{row.benchmark}-before-records.md"):
        lines = page.read_text().splitlines() if page.exists() else []
        if found := _in_lines(row, lines, _of_seeds(row, pages) or _of_page(lines)):
            return found
    return None


def _of_seeds(row: Row, pages: Path) -> str:
    """Which days and commits the seeds are of that a figure comes from."""
    seeds = [json.loads(path.read_text()) for path in (pages / "records" / row.benchmark).glob(row.seeds or "-")]
    days = sorted({seed["date"] for seed in seeds})
    return ", ".join(
        [" to ".join(dict.fromkeys([*days[:1], *days[-1:]])), *sorted({seed["commit"][:7] for seed in seeds})]
    )


def _of_page(lines: list[str]) -> str:
    """The same of a page, which names them in a line for each commit."""
    made_by = [line.removeprefix("Commit ").rstrip(".").split(", ") for line in lines if line.startswith("Commit ")]
    return "; ".join(
        ", ".join([*(part for part in parts if re.fullmatch(r"\d{4}-\d\d-\d\d", part)), parts[0][:7]])
        for parts in made_by
    )


def _in_figures(row: Row, parts: dict[str, Any]) -> Found | None:
    for name, part in parts.items():
        for figure in part["figures"] if row.part in ("", name) else ():
            if row.regex.search(figure["name"]):
                origin = f"{part['date']}, {part['commit'][:7]}, load {part['load'][0]:g}"
                text, of_jobs, jobs = figure["measured"].partition("; Jobs ")
                peer = next(
                    (each["measured"] for each in part["figures"] if row.peer and row.peer in each["name"]), row.peer
                )
                beside = f"Jobs {jobs}" if of_jobs else peer
                return Found(text, _number(text), beside, origin, figure["good"], figure["target"])
    return None


def _in_lines(row: Row, lines: list[str], origin: str) -> Found | None:
    for line in lines:
        if match := row.regex.search(line):
            named = match.groupdict()
            said = {"yes": True, "NO": False}.get(named.get("met") or "")
            measured = next(
                text for place, text in enumerate(match.groups(), 1) if place not in match.re.groupindex.values()
            )
            peer, target = named.get("peer") or row.peer, named.get("target") or ""
            return Found(measured, _number(measured), peer, origin, said, target)
    return None


def _number(text: str) -> float | None:
    match = re.search(r"-?\d[\d,]*\.?\d*", text)
    return float(match[0].replace(",", "")) if match else None


def line(row: Row, found: Found | None) -> tuple[str, bool | None]:
    """The row of the table, and whether the promise is kept; None when that is not known or there is no target."""
    target = f"{row.direction} {row.target:,.10g}" if row.direction is not None and row.target is not None else ""
    if found is None:
        return f"| {row.figure} | {target} | not measured | | | | |", None
    target = target or found.target
    kept: bool | None = found.good
    ratio = ""
    if row.target is not None and found.number is not None:
        kept = found.number >= row.target if row.direction == "at least" else found.number <= row.target
        numbers = (
            (found.number, row.target) if row.target > 0 else (row.target, found.number)
        )  # of two losses the smaller
        ratio = f"{numbers[0] / numbers[1]:.2f}" if row.target and found.number else ""
    verdict = {None: "", True: "met", False: f"**missed**{': ' + row.why_missed if row.why_missed else ''}"}[kept]
    return f"| {row.figure} | {target} | {found.text} | {ratio} | {found.peer} | {verdict} | {found.origin} |", kept


def learning(pages: Path) -> list[str]:
    """Interquartile means with stratified bootstrap intervals, over the seeds that have records."""
    from scores import CASES

    records = Records("scores", pages / "records")
    rows, shares = [], []
    for case in CASES:
        last = [float(record["last"]) for record in records.of(case.file_name)]
        if not last:
            continue
        low, high = interval([last])
        within = f"{low:.1f} to {high:.1f}" if len(last) > 1 else "one seed has none"
        curve = f"{case.file_name}.png"
        algo = f"[{case.algo}]({curve})" if (pages / curve).exists() else case.algo
        rows.append(f"| {algo} | {case.env_id} | {len(last)} | {iqm(last):.1f} | {within} | {case.least:g} |")
        shares.append([normalised(score, RANDOM_RETURNS[case.env_id], case.least) for score in last])
    if not rows:
        return ["No seed has a record yet: `python tests/benchmarks/scores.py`."]
    low, high = interval(shares)
    everything = [share for case_shares in shares for share in case_shares]
    return [
        "Interquartile mean over the seeds of the last 100 training episodes; 95 % intervals by a stratified bootstrap. Each",
        "name leads to its curves.",
        "",
        "| algorithm | environment | seeds | IQM | 95 % | target |",
        "|---|---|---|---|---|---|",
        *rows,
        f"| all | 0: random, 1: the target | {len(everything)} | {iqm(everything):.3f} | {low:.3f} to {high:.3f} | 1 |",
    ]


def machines(pages: Path) -> list[str]:
    """Where the records were made: the machine that collects them may be another one."""
    kept = [json.loads(path.read_text()) for path in pages.glob("records/*/*.json")]
    for path in pages.glob("*.json"):
        kept += json.loads(path.read_text()).values()
    return sorted({record["machine"] for record in kept})


def collect(pages: Path, *, measured_only: bool = False) -> str:
    """The whole page, from the records; with `measured_only` without the promises that these say nothing of."""
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench` (`--collect` makes the page anew from the records). Each figure stands with the date and commit",
        "of its own record and, where that was noted, the machine's load when it began: above the number of cores, others were",
        "at work. A ratio above 1 is better than asked for where the target is a least, and worse where it is a most.",
        f"The records are of {'; '.join(machines(pages))}.",
        "",
    ]
    kept = missed = unknown = 0
    body: list[str] = []
    area = ""
    rows = [row for row in ROWS if not measured_only or find(row, pages) is not None]
    for row in rows:
        if row.area != area:
            area = row.area
            body += [
                "",
                f"## {area}",
                "",
                "| Figure | Target | Measured | Ratio | Beside it | | Record |",
                "|---|---|---|---|---|---|---|",
            ]
        found = find(row, pages)
        text, good = line(row, found)
        body.append(text)
        kept, missed, unknown = kept + (good is True), missed + (good is False), unknown + (found is None)
        if row is [each for each in rows if each.area == area][-1]:
            body += ["", *learning(pages)] if area == "Learning" else []
            plot = PLOTS.get(area, "")
            body += ["", f"![{plot.removesuffix('.png')}]({plot})"] if plot and (pages / plot).exists() else []
    others = sorted(path.name for path in pages.glob("*.md") if path.name != "README.md")
    plain = len(rows) - kept - missed - unknown
    beside = f" {plain} figures more have no target." if plain else ""
    lines += [f"Of {len(rows) - plain} promises {kept} are met, {missed} missed, {unknown} not measured.{beside}"]
    tail = ["", "## Pages", "", *(f"- [{name.removesuffix('.md')}]({name})" for name in others)]
    return "\n".join([*lines, *body, *tail]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[*COMMANDS, []],
        help=f"which benchmarks, of {', '.join(COMMANDS)}; those of minutes by default",
    )  # fmt: skip
    parser.add_argument("--collect", action="store_true", help="run nothing")
    parser.add_argument("--quick", action="store_true", help="short forms; docs/benchmarks stays as it is")
    parser.add_argument("--out", type=Path, help="where records and pages go")
    args = parser.parse_args()
    pages = (args.out or (PROJECT / "build" / "bench" if args.quick else PAGES)).resolve()
    pages.mkdir(parents=True, exist_ok=True)
    usual = [name for name, command in COMMANDS.items() if (command.quick if args.quick else command.everyday)]
    chosen = [] if args.collect else args.names or usual
    if args.quick and (lacking := [name for name in chosen if not COMMANDS[name].quick]):
        parser.error(f"there is no short form of {', '.join(lacking)}")
    if chosen:
        other = "" if args.quick or args.names else "; --quick is a short form"
        total = sum(minutes(name, args.quick) for name in chosen)
        print(f"{len(chosen)} benchmarks, about {total:g} min, into {pages}{other}: {', '.join(chosen)}", flush=True)
    failed = []
    for name in chosen:
        if not run(name, pages, quick=args.quick):
            failed.append(name)
        (pages / "README.md").write_text(collect(pages, measured_only=args.quick))  # what there is, if this is cut off
    page = collect(pages, measured_only=args.quick)
    (pages / "README.md").write_text(page)
    print(page)
    if failed:
        print(f"these say that a target was missed, or could not be run: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(saying_when_stopped(main, "what had ended by then is kept, and --collect shows it"))
