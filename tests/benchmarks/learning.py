"""Learning on images, at sizes that two cores allow: does the curve go where it should?

    python tests/benchmarks/learning.py [--only ppo_atari:Pong] [--work build/learning] [--out docs/benchmarks] [--jobs 1]

Takes a day. Each finished job is a file in the work folder, so a second call goes on where the first was stopped, and a job
that was cut off continues from its checkpoint. The table (Markdown) and the curves (PNG) go to docs/benchmarks/. A target that
was missed is shown as missed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jobs import read_curve, train
from reporting import commit, machine  # beside this file

RETURN = "charts/episodic_return"
Curve = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Verdict:
    met: bool
    found: str


def last_episodes(count: int, least: float) -> Callable[[Curve, int], Verdict]:
    """The mean of the last `count` episodes reaches `least`."""

    def judge(curve: Curve, _steps: int) -> Verdict:
        mean = float(np.mean(curve[1][-count:]))
        return Verdict(mean >= least, f"last {count} episodes: {mean:.2f}, at least {least:g}")

    return judge


def tenths(sign: int) -> Callable[[Curve, int], Verdict]:
    """The last tenth lies above (1) or below (-1) the first tenth, by more than the 95 % interval of the difference."""

    def judge(curve: Curve, steps: int) -> Verdict:
        at, values = np.asarray(curve[0]), np.asarray(curve[1])
        first, last = values[at <= steps / 10], values[at > steps * 0.9]
        change = float(last.mean() - first.mean())
        spread = 1.96 * float(np.sqrt(first.var(ddof=1) / len(first) + last.var(ddof=1) / len(last)))
        found = f"first tenth {first.mean():.3g}, last tenth {last.mean():.3g}: {change:+.3g} ± {spread:.2g}"
        return Verdict(sign * change > spread, found)

    return judge


@dataclass(frozen=True)
class Case:
    algo: str
    game: str
    steps: int
    judge: Callable[[Curve, int], Verdict]
    target: str
    flags: tuple[str, ...] = ()
    tag: str = RETURN
    smooth: int = field(default=20)

    @property
    def name(self) -> str:
        return f"{self.algo}:{self.game}"

    @property
    def command(self) -> list[str]:
        flags = ["--env-id", self.game, "--total-timesteps", str(self.steps), "--seed", "1", "--no-cuda", *self.flags]
        return ["-m", f"cleanrl_worker.algorithms.{self.algo}", *flags]


FEW_LEVELS = ("--num-levels", "10", "--num-envs", "16", "--num-steps", "128")
RISES = "last tenth above first tenth"

CASES = (
    Case("ppo_atari", "PongNoFrameskip-v4", 1_000_000, last_episodes(20, -17), "-17 or more"),
    Case("pqn_atari_envpool", "Pong-v5", 1_000_000, last_episodes(20, -17), "-17 or more"),
    Case("ppo_procgen", "coinrun", 300_000, tenths(1), RISES, FEW_LEVELS, smooth=100),
    Case("ppg_procgen", "coinrun", 300_000, tenths(1), RISES, (*FEW_LEVELS, "--n-iteration", "4"), smooth=100),
    Case(
        "ppo_rnd_envpool",
        "MontezumaRevenge-v5",
        150_000,
        tenths(-1),
        "curiosity: last tenth below first tenth",
        ("--num-envs", "16", "--num-steps", "128", "--num-iterations-obs-norm-init", "2"),
        tag="charts/curiosity_reward",
        smooth=1,
    ),
)


def play(case: Case, work: Path) -> dict[str, Any]:
    """Train, or go on, and keep the curve in a file."""
    folder = work / f"{case.algo}-{case.game}"
    result = folder / "result.json"
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    train(case.command, folder, CLEANRL_CHECKPOINT_EVERY_SECONDS="300")
    steps, values = read_curve(folder, case.tag)
    summary = {"steps": steps, "values": values, "commit": commit(), "machine": machine()}
    result.with_suffix(".tmp").write_text(json.dumps(summary))
    result.with_suffix(".tmp").rename(result)
    return summary


def draw(case: Case, curve: Curve, verdict: Verdict, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    steps, values = np.asarray(curve[0]), np.asarray(curve[1])
    window = min(case.smooth, len(values))
    mean = np.convolve(values, np.ones(window) / window, "valid")
    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    axes.plot(steps, values, ".", alpha=0.15, markersize=3)
    axes.plot(steps[window - 1 :], mean, color="black", label=f"mean of {window}")
    axes.set(title=f"{case.algo} on {case.game}", xlabel="environment steps", ylabel=case.tag)
    axes.legend(title=f"{'met' if verdict.met else 'missed'}: {case.target}")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def report(cases: list[Case], work: Path, out: Path) -> bool:
    """Write table and curves of all that is finished. Returns whether every target was met."""
    out.mkdir(parents=True, exist_ok=True)
    rows, good = [], True
    for case in cases:
        path = work / f"{case.algo}-{case.game}" / "result.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text())
        curve = (result["steps"], result["values"])
        verdict = case.judge(curve, case.steps)
        good &= verdict.met
        picture = f"learning-{case.algo}-{case.game}.png"
        draw(case, curve, verdict, out / picture)
        command = f"python {' '.join(case.command)}"
        rows.append(
            f"| {case.algo} | {case.game} | {case.steps:,} | {case.target} | {verdict.found} | "
            f"{'yes' if verdict.met else 'NO'} | [curve]({picture}) | `{command}` | {result['commit']} |"
        )
    head = [
        "# Learning on images",
        "",
        "One seed each, sizes that two cores allow. `python tests/benchmarks/learning.py` reruns it.",
        "",
        "| algorithm | game | steps | target | found | met | curve | command | commit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    (out / "learning.md").write_text("\n".join([*head, *rows]) + "\n")
    print("\n".join(rows))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="cases, as algorithm:game")
    parser.add_argument("--jobs", type=int, default=1, help="jobs at a time, one core each")
    parser.add_argument("--work", type=Path, default=Path("build/learning"))
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    args = parser.parse_args()
    cases = [case for case in CASES if not args.only or case.name in args.only]
    if not cases:
        parser.error(f"--only must name some of {', '.join(case.name for case in CASES)}")
    work = args.work.resolve()
    began = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        futures = {pool.submit(play, case, work): case for case in cases}
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            print(f"[{done}/{len(cases)}, {time.monotonic() - began:.0f} s] {futures[future].name}", flush=True)
    return 0 if report(list(CASES), work, args.out) else 1


if __name__ == "__main__":
    raise SystemExit(main())
