"""DoorKey 6x6 by way of 5x5, beside 6x6 alone: how many steps, 5x5 included, until it is solved, over seeds.

    python tests/benchmarks/curriculum.py [--seeds 5] [--work build/curriculum] [--jobs 1] [--steps 500000]

Takes hours: a seed of half a million steps is about eleven minutes of one core, twice. Each finished seed is a file in the work
folder, so a second call goes on where the first was stopped, and a seed that was cut off continues from its checkpoint. The
table (Markdown) and the learning curves (PNG) go to docs/benchmarks/.
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
from scores import LAST, interval

EASY, GOAL = "MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-6x6-v0"
SOLVED = 0.8
FLAGS = ["--num-envs", "16", "--num-steps", "128", "--num-minibatches", "8", "--learning-rate", "1e-3"]


@dataclass(frozen=True)
class Case:
    name: str
    words: str
    schedule: tuple[dict[str, Any], ...]

    @property
    def goal_tag(self) -> str:
        """The curve of the returns on 6x6."""
        return f"curriculum/return_{len(self.schedule) - 1}" if self.schedule else "charts/episodic_return"


CASES = (
    Case(
        "curriculum",
        f"5x5 until `episode_return>={SOLVED}`, then 6x6",
        ({"env_id": EASY, "episode_return": SOLVED}, {"env_id": GOAL}),
    ),
    Case("alone", "6x6 from the first step", ()),
)


def play(case: Case, seed: int, steps: int, work: Path) -> dict[str, Any]:
    """Train one seed, or go on with it, and keep its result in a file."""
    folder = work / f"{case.name}-{seed}"
    result = folder / "result.json"
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    flags = [
        "--env-id",
        GOAL,
        "--total-timesteps",
        str(steps),
        "--seed",
        str(seed),
        "--no-cuda",
        "--save-model",
        *FLAGS,
    ]
    staged = {"CLEANRL_CURRICULUM": json.dumps(case.schedule)} if case.schedule else {}
    train(["-m", "cleanrl_worker.algorithms.ppo", *flags], folder, **staged)
    at, returns = read_curve(folder, case.goal_tag)
    summary = {
        "seed": seed,
        "solved_at": solved_at(at, returns),
        "first_goal_episode": at[0] if at else None,
        "evaluation": evaluation(folder),
        "steps": at,
        "returns": returns,
        "total": steps,
        "commit": commit(),
        "machine": machine(),
    }
    result.with_suffix(".tmp").write_text(json.dumps(summary))
    result.with_suffix(".tmp").rename(result)
    return summary


def solved_at(steps: list[int], returns: list[float]) -> int | None:
    """The step, counted from the very first one, at which the last 100 episodes on 6x6 were good enough."""
    total = np.cumsum(np.insert(np.asarray(returns), 0, 0.0))
    means = (total[LAST:] - total[:-LAST]) / LAST
    good = np.flatnonzero(means > SOLVED)
    return int(steps[int(good[0]) + LAST - 1]) if len(good) else None


def evaluation(folder: Path) -> float:
    """The mean return of 100 episodes of 6x6 with the finished model, acting as it was trained to."""
    from cleanrl_worker.evals import evaluate

    (model,) = folder.glob("runs/*/*.cleanrl_model")
    return evaluate("ppo", model, GOAL, episodes=100, seed=10_000).avg_return


def draw(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Each seed's moving average on 6x6 over all steps taken, 5x5 included."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    for (name, found), colour in zip(results.items(), ("tab:blue", "tab:orange"), strict=True):
        for number, result in enumerate(found):
            if len(result["returns"]) < LAST:
                continue
            smooth = np.convolve(result["returns"], np.ones(LAST) / LAST, mode="valid")
            label = f"{name}, {len(found)} seeds" if number == 0 else None
            axes.plot(result["steps"][LAST - 1 :], smooth, color=colour, alpha=0.6, linewidth=1, label=label)
    axes.axhline(SOLVED, color="green", linestyle="--", linewidth=1, label=f"solved: {SOLVED}")
    axes.set(
        title="ppo on DoorKey 6x6", xlabel="environment steps, 5x5 included", ylabel=f"return on 6x6, mean of {LAST}"
    )
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def shown(values: list[float], digits: int = 0) -> str:
    half = interval(values)
    spread = "" if np.isnan(half) else f" ± {half:,.{digits}f}"
    return f"{np.mean(values):,.{digits}f}{spread}" if values else "-"


def report(work: Path, out: Path) -> bool:
    """Write table and curves of all that is finished. Returns whether every seed of the curriculum solved 6x6."""
    out.mkdir(parents=True, exist_ok=True)
    results = {
        case.name: [json.loads(path.read_text()) for path in sorted(work.glob(f"{case.name}-*/result.json"))]
        for case in CASES
    }
    everything = [result for found in results.values() for result in found]
    if not everything:
        return False
    rows = []
    for case in CASES:
        found = results[case.name]
        solved = [float(result["solved_at"]) for result in found if result["solved_at"] is not None]
        evaluated = [result["evaluation"] for result in found]
        begun = [float(result["first_goal_episode"]) for result in found if result["first_goal_episode"] is not None]
        rows.append(
            f"| {case.words} | {len(found)} | {len(solved)} | {shown(solved)} | {shown(begun) if case.schedule else '0'} | "
            f"{shown(evaluated, 3)} |"
        )
    totals = sorted({result["total"] for result in everything})
    head = [
        "# Curriculum: DoorKey 5x5 to 6x6",
        "",
        (
            f"`ppo` with `{' '.join(FLAGS)}`, {', '.join(f'{total:,}' for total in totals)} steps in all. Solved is the first "
            f"step, counted from the very first one on 5x5, at which the last {LAST} episodes on 6x6 had a mean return above "
            f"{SOLVED}. Means over seeds ± 95 % interval; the last column is 100 new episodes of 6x6 with the finished model. "
            "`python tests/benchmarks/curriculum.py` reruns it."
        ),
        "",
        *sorted({f"Commit {result['commit']}, {result['machine']}." for result in everything}),
        "",
        "| training | seeds | solved | steps until solved | until the first 6x6 episode ended | return, 100 episodes |",
        "|---|---|---|---|---|---|",
    ]
    (out / "curriculum.md").write_text("\n".join([*head, *rows, "", "![learning curves](curriculum.png)"]) + "\n")
    draw(results, out / "curriculum.png")
    print("\n".join(rows))
    found = results["curriculum"]
    return bool(found) and all(result["solved_at"] and result["evaluation"] > SOLVED for result in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, one core each")
    parser.add_argument("--work", type=Path, default=Path("build/curriculum"))
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    args = parser.parse_args()
    work = args.work.resolve()
    todo = [(case, seed) for seed in range(1, args.seeds + 1) for case in CASES]
    began = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        futures = {pool.submit(play, case, seed, args.steps, work): (case, seed) for case, seed in todo}
        for done, future in enumerate(as_completed(futures), 1):
            case, seed = futures[future]
            result = future.result()
            print(
                f"[{done}/{len(todo)}, {time.monotonic() - began:.0f} s] {case.name} seed {seed}: solved at "
                f"{result['solved_at']}, evaluation {result['evaluation']:.3f}",
                flush=True,
            )
    return 0 if report(work, args.out) else 1


if __name__ == "__main__":
    raise SystemExit(main())
