"""Where a figure comes from: what every benchmark writes beside its table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def commit() -> str:
    """The commit that was measured."""
    done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def machine() -> str:
    """Processor, cores and Python: what a figure depends on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, by the kernel's count."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def child_cpu_seconds(command: Sequence[str], folder: str, environ: Mapping[str, str]) -> tuple[int, float, str]:
    """Run a command to its end: exit code, the CPU seconds of it and its children, and what it said on standard error."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=said)
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)  # else Popen would wait for it once more
        said.seek(0)
        return process.returncode, used.ru_utime + used.ru_stime, said.read()


def table_page(title: str, about: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """One table in Markdown, with what it shows and where it was measured."""
    return "\n".join(
        [
            f"# {title}",
            "",
            about,
            "",
            f"Commit {commit()}, {machine()}, {datetime.now(UTC):%Y-%m-%d}.",
            "",
            f"| {' | '.join(columns)} |",
            "|---" * len(columns) + "|",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
        ]
    )


def publish_figures(
    name: str, heading: str, about: str, parts: dict[str, dict[str, Any]], folder: Path | None = None
) -> None:
    """Write figures as docs/benchmarks/NAME.json, for the table, and NAME.md, to read; print the page.

    A part replaces its last self and leaves the others. It has title, date, commit, machine, load, and `figures` with name,
    measured, target and good (None without a target).
    """
    target = folder or Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
    target.mkdir(parents=True, exist_ok=True)
    store = target / f"{name}.json"
    known = {**(json.loads(store.read_text()) if store.exists() else {}), **parts}
    store.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    lines = [f"# {heading}", "", about.strip().splitlines()[0], ""]
    for part in known.values():
        load = ", ".join(f"{value:g}" for value in part["load"])
        lines += [f"## {part['title']}", ""]
        lines += [f"{part['date']}, commit {part['commit']}; {part['machine']}; load average when it began {load}.", ""]
        lines += ["| Figure | Measured | Target | |", "|---|---|---|---|"]
        for figure in part["figures"]:
            verdict = {None: "", True: "reached", False: "missed"}[figure["good"]]
            lines.append(f"| {figure['name']} | {figure['measured']} | {figure['target']} | {verdict} |")
        lines.append("")
    text = "\n".join(lines)
    (target / f"{name}.md").write_text(text)
    print(text)
