"""Scores over seeds with default flags: the mean of the last 100 training episodes, and a greedy evaluation beside it.

    python tests/benchmarks/scores.py [--only ppo:CartPole-v1] [--seeds 5] [--work build/scores] [--jobs 1]

Takes hours. Each finished seed is a file in the work folder, so a second call goes on where the first was stopped, and a seed
that was cut off continues from its checkpoint. The table (Markdown) and the learning curves (PNG) go to docs/benchmarks/.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jobs import read_curve, train
from reporting import commit, machine

# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
LAST = 100


@dataclass(frozen=True)
class Case:
    algo: str
    env_id: str
    steps: int
    least: float

    @property
    def name(self) -> str:
        return f"{self.algo}:{self.env_id}"


CASES = (
    Case("ppo", "CartPole-v1", 500_000, 484),
    Case("pqn", "CartPole-v1", 500_000, 488),
    Case("dqn", "CartPole-v1", 500_000, 472),
    Case("c51", "CartPole-v1", 500_000, 461),
    Case("ppo", "Acrobot-v1", 500_000, -88),
    Case("sac_continuous_action", "Pendulum-v1", 50_000, -200),
    Case("td3_continuous_action", "Pendulum-v1", 50_000, -200),
)


def play(case: Case, seed: int, work: Path) -> dict[str, Any]:
    """Train one seed, or go on with it, and keep its result in a file."""
    folder = work / f"{case.algo}-{case.env_id}-{seed}"
    result = folder / "result.json"
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    flags = ["--env-id", case.env_id, "--total-timesteps", str(case.steps), "--seed", str(seed), "--no-cuda"]
    train(["-m", f"cleanrl_worker.algorithms.{case.algo}", *flags, "--save-model"], folder)
    steps, returns = read_curve(folder)
    summary = {
        "seed": seed,
        "train": float(np.mean(returns[-LAST:])),
        "greedy": greedy(case, folder),
        "steps": steps,
        "returns": returns,
        "commit": commit(),
        "machine": machine(),
    }
    result.with_suffix(".tmp").write_text(json.dumps(summary))
    result.with_suffix(".tmp").rename(result)
    return summary


def greedy(case: Case, folder: Path) -> float | None:
    """The mean return of 100 greedy episodes; None for algorithms that save no model."""
    from cleanrl_worker.evals import evaluate

    models = list(folder.glob("runs/*/*.cleanrl_model"))
    if not models:
        return None
    return evaluate(case.algo, models[0], case.env_id, episodes=100, seed=10_000, greedy=True).avg_return


def interval(values: list[float]) -> float:
    """Half of the 95 % confidence interval of the mean."""
    n = len(values)
    return float("nan") if n < 2 else T95.get(n - 1, 1.96) * float(np.std(values, ddof=1)) / n**0.5


def draw(case: Case, results: list[dict[str, Any]], path: Path) -> None:
    """Each seed's moving average over 100 episodes, and their mean."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    grid = np.linspace(0, case.steps, 200)
    curves = []
    for result in results:
        returns = np.asarray(result["returns"])
        total = np.cumsum(np.insert(returns, 0, 0.0))
        window = np.minimum(np.arange(1, len(returns) + 1), LAST)
        smooth = (total[1:] - total[np.arange(1, len(returns) + 1) - window]) / window
        axes.plot(result["steps"], smooth, alpha=0.3, linewidth=1)
        curves.append(np.interp(grid, result["steps"], smooth))
    axes.plot(grid, np.mean(curves, axis=0), color="black", label=f"mean of {len(results)} seeds")
    axes.axhline(case.least, color="green", linestyle="--", linewidth=1, label=f"at least {case.least:g}")
    axes.set(
        title=f"{case.algo} on {case.env_id}", xlabel="environment steps", ylabel=f"return, mean of {LAST} episodes"
    )
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def report(cases: list[Case], work: Path, out: Path) -> bool:
    """Write table and curves of all that is finished, and what is not. Returns whether every threshold was met."""
    out.mkdir(parents=True, exist_ok=True)
    rows, good, origins = [], True, set()
    for case in cases:
        files = sorted(work.glob(f"{case.algo}-{case.env_id}-*/result.json"))
        results = [json.loads(path.read_text()) for path in files]
        if not results:
            rows.append(f"| {case.algo} | {case.env_id} | {case.steps:,} | 0 | not run yet | - | {case.least:g} | - |")
            good = False
            continue
        train = [result["train"] for result in results]
        tested = [result["greedy"] for result in results if result["greedy"] is not None]
        met = float(np.mean(train)) >= case.least
        good &= met
        origins |= {(result["commit"], result["machine"]) for result in results}
        shown = f"{np.mean(tested):.1f} ± {interval(tested):.1f}" if tested else "-"
        rows.append(
            f"| {case.algo} | {case.env_id} | {case.steps:,} | {len(results)} | {np.mean(train):.1f} ± {interval(train):.1f} | "
            f"{shown} | {case.least:g} | {'yes' if met else 'NO'} |"
        )
        draw(case, results, out / f"{case.algo}-{case.env_id}.png")
    head = [
        "# Scores",
        "",
        (
            f"Default flags; mean over seeds of the last {LAST} training episodes ± 95 % interval, and 100 greedy episodes "
            "of the finished model beside it. `python tests/benchmarks/scores.py` reruns it."
        ),
        "",
        *(f"Commit {made_by}, {where}." for made_by, where in sorted(origins)),
        "",
        "| algorithm | environment | steps | seeds | last 100 episodes | greedy | at least | met |",
        "|---|---|---|---|---|---|---|---|",
    ]
    (out / "scores.md").write_text("\n".join([*head, *rows]) + "\n")
    print("\n".join(rows))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="cases, as algorithm:environment")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, one core each")
    parser.add_argument("--work", type=Path, default=Path("build/scores"))
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    args = parser.parse_args()
    cases = [case for case in CASES if not args.only or case.name in args.only]
    if not cases:
        parser.error(f"--only must name some of {', '.join(case.name for case in CASES)}")
    work = args.work.resolve()
    todo = [(case, seed) for case in cases for seed in range(1, args.seeds + 1)]
    began = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        futures = {pool.submit(play, case, seed, work): (case, seed) for case, seed in todo}
        for done, future in enumerate(as_completed(futures), 1):
            case, seed = futures[future]
            result = future.result()
            print(
                f"[{done}/{len(todo)}, {time.monotonic() - began:.0f} s] {case.name} seed {seed}: {result['train']:.1f}",
                flush=True,
            )
    return 0 if report(list(CASES), work, args.out) else 1


if __name__ == "__main__":
    raise SystemExit(main())
