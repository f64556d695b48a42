"""DoorKey 6x6 by way of 5x5, beside 6x6 alone: how many steps, 5x5 included, until it is solved, over seeds.

    python tests/benchmarks/curriculum.py [--seeds 5] [--work build/curriculum] [--jobs 1] [--steps 500000]

Takes hours: a seed of half a million steps is about eleven minutes of one core, twice. Each finished seed becomes a record in
docs/benchmarks/records/curriculum/ (see `records.py`) and is not trained again; one that was cut off continues from its
checkpoint in the work folder. The table (Markdown) and the learning curves (PNG) in docs/benchmarks/ are generated from the
records; `--seeds 0` only does that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jobs import read_curve, train
from records import Record, Records, options, origins, spread, trailing_mean, work_through
from scores import LAST

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


def play(case: Case, seed: int, steps: int, work: Path, records: Records) -> str:
    """Train one seed, or go on with it, and keep its record."""
    folder = work / f"{case.name}-{seed}"
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
    figures = {
        "steps": steps,
        "solved_at": solved_at(at, returns),
        "first_goal_episode": at[0] if at else None,
        "evaluation": evaluation(folder),
    }
    smooth = trailing_mean(returns, LAST)
    records.save(case.name, seed, figures, (at[LAST - 1 :], list(smooth[LAST - 1 :])))
    return f"{case.name} seed {seed}: solved at {figures['solved_at']}, evaluation {figures['evaluation']:.3f}"


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


def draw(results: dict[str, list[Record]], path: Path) -> None:
    """Each seed's moving average on 6x6 over all steps taken, 5x5 included."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    for (name, found), colour in zip(results.items(), ("tab:blue", "tab:orange"), strict=True):
        for number, result in enumerate(found):
            label = f"{name}, {len(found)} seeds" if number == 0 else None
            curve = result["curve"]
            axes.plot(curve["steps"], curve["values"], color=colour, alpha=0.6, linewidth=1, label=label)
    axes.axhline(SOLVED, color="green", linestyle="--", linewidth=1, label=f"solved: {SOLVED}")
    axes.set(
        title="ppo on DoorKey 6x6", xlabel="environment steps, 5x5 included", ylabel=f"return on 6x6, mean of {LAST}"
    )
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def table(results: dict[str, list[Record]]) -> list[str]:
    """A row for each kind of training, and below them one for each seed."""
    rows = []
    for case in CASES:
        found = results[case.name]
        solved = [float(result["solved_at"]) for result in found if result["solved_at"] is not None]
        begun = [float(result["first_goal_episode"]) for result in found if result["first_goal_episode"] is not None]
        rows.append(
            f"| {case.words} | {len(found)} | {len(solved)} | {spread(solved, 0)} | "
            f"{spread(begun, 0) if case.schedule else '0'} | {spread([result['evaluation'] for result in found], 3)} |"
        )
    for case in CASES:
        for result in results[case.name]:
            at, begun_at = (
                "-" if result[name] is None else f"{result[name]:,}" for name in ("solved_at", "first_goal_episode")
            )
            rows.append(
                f"| {case.name} | seed {result['seed']} | {'no' if at == '-' else 'yes'} | {at} | {begun_at} | "
                f"{result['evaluation']:.3f} |"
            )
    return rows


def report(records: Records, out: Path) -> bool:
    """Write table and curves of all that is finished. Returns whether every seed of the curriculum solved 6x6."""
    out.mkdir(parents=True, exist_ok=True)
    results = {case.name: records.of(case.name) for case in CASES}
    everything = [result for found in results.values() for result in found]
    if not everything:
        return False
    totals = sorted({result["steps"] for result in everything})
    head = [
        "# Curriculum: DoorKey 5x5 to 6x6",
        "",
        (
            f"`ppo` with `{' '.join(FLAGS)}`, {', '.join(f'{total:,}' for total in totals)} steps in all. Solved is the first "
            f"step, counted from the very first one on 5x5, at which the last {LAST} episodes on 6x6 had a mean return above "
            f"{SOLVED}. Means over seeds ± 95 % interval; the last column is 100 new episodes of 6x6 with the finished model. "
            "`python tests/benchmarks/curriculum.py` trains what has no record in `records/curriculum` and "
            "writes this page from there."
        ),
        "",
        *origins(everything),
        "",
        "| training | seeds | solved | steps until solved | until the first 6x6 episode ended | return, 100 episodes |",
        "|---|---|---|---|---|---|",
    ]
    (out / "curriculum.md").write_text(
        "\n".join([*head, *table(results), "", "![learning curves](curriculum.png)"]) + "\n"
    )
    draw(results, out / "curriculum.png")
    found = results["curriculum"]
    return bool(found) and all(result["solved_at"] and result["evaluation"] > SOLVED for result in found)


def main() -> int:
    parser = options(__doc__, "build/curriculum")
    parser.add_argument("--steps", type=int, default=500_000)
    args = parser.parse_args()
    work, records = args.work.resolve(), Records("curriculum", args.records)
    every = [(case, seed) for seed in range(1, args.seeds + 1) for case in CASES]
    missing = [(case, seed) for case, seed in every if not records.has(case.name, seed)]
    work_through(
        missing,
        lambda job: play(job[0], job[1], args.steps, work, records),
        lambda: report(records, args.out),
        args.jobs,
    )
    good = report(records, args.out)
    print("\n".join(table({case.name: records.of(case.name) for case in CASES})))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
