"""Scores over seeds with default flags: the mean of the last 100 training episodes, and a greedy evaluation beside it.

    python tests/benchmarks/scores.py [--only ppo:CartPole-v1] [--seeds 5] [--work build/scores] [--jobs 1]

Takes hours. Each finished seed becomes a record in docs/benchmarks/records/scores/ (see `records.py`) and is not trained again;
one that was cut off continues from its checkpoint in the work folder. The table (Markdown) and the learning curves (PNG) in
docs/benchmarks/ are generated from the records; `--seeds 0` only does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jobs import read_curve, train
from records import Record, Records, options, origins, spread, trailing_mean, work_through

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

    @property
    def file_name(self) -> str:
        return f"{self.algo}-{self.env_id}"


CASES = (
    Case("ppo", "CartPole-v1", 500_000, 484),
    Case("pqn", "CartPole-v1", 500_000, 488),
    Case("dqn", "CartPole-v1", 500_000, 472),
    Case("c51", "CartPole-v1", 500_000, 461),
    Case("ppo", "Acrobot-v1", 500_000, -88),
    Case("sac_continuous_action", "Pendulum-v1", 50_000, -200),
    Case("td3_continuous_action", "Pendulum-v1", 50_000, -200),
    Case("ddpg_continuous_action", "Pendulum-v1", 50_000, -200),
    Case("dqn_jax", "CartPole-v1", 500_000, 496),
    Case("c51_jax", "CartPole-v1", 500_000, 481),
    Case("td3_continuous_action_jax", "Pendulum-v1", 50_000, -200),
    Case("ddpg_continuous_action_jax", "Pendulum-v1", 50_000, -200),
)


def play(case: Case, seed: int, work: Path, records: Records) -> str:
    """Train one seed, or go on with it, and keep its record."""
    folder = work / f"{case.file_name}-{seed}"
    flags = ["--env-id", case.env_id, "--total-timesteps", str(case.steps), "--seed", str(seed), "--save-model"]
    train(
        ["-m", f"cleanrl_worker.algorithms.{case.algo}", *flags], folder, CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu"
    )
    steps, returns = read_curve(folder)
    last = float(np.mean(returns[-LAST:]))
    figures = {"steps": case.steps, "last": last, "greedy": greedy(case, folder)}
    records.save(case.file_name, seed, figures, (steps, list(trailing_mean(returns, LAST))))
    return f"{case.name} seed {seed}: {last:.1f}"


def greedy(case: Case, folder: Path) -> float | None:
    """The mean return of 100 greedy episodes; None for algorithms that save no model."""
    from cleanrl_worker.evals import evaluate

    models = list(folder.glob("runs/*/*.cleanrl_model"))
    if not models:
        return None
    return evaluate(case.algo, models[0], case.env_id, episodes=100, seed=10_000, greedy=True).avg_return


def draw(case: Case, results: list[Record], path: Path) -> None:
    """Each seed's moving average over 100 episodes, and their mean."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    grid = np.linspace(0, case.steps, 200)
    curves = []
    for result in results:
        steps, values = result["curve"]["steps"], result["curve"]["values"]
        axes.plot(steps, values, alpha=0.3, linewidth=1)
        curves.append(np.interp(grid, steps, values))
    axes.plot(grid, np.mean(curves, axis=0), color="black", label=f"mean of {len(results)} seeds")
    axes.axhline(case.least, color="green", linestyle="--", linewidth=1, label=f"at least {case.least:g}")
    axes.set(
        title=f"{case.algo} on {case.env_id}", xlabel="environment steps", ylabel=f"return, mean of {LAST} episodes"
    )
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def table(records: Records) -> tuple[list[str], bool]:
    """The rows of the table, and whether every threshold was met."""
    rows, good = [], True
    for case in CASES:
        results = records.of(case.file_name)
        begins = f"| {case.algo} | {case.env_id} | {case.steps:,} |"
        if not results:
            rows.append(f"{begins} not run yet | - | - | {case.least:g} | - | - |")
            good = False
            continue
        last = [result["last"] for result in results]
        tested = [result["greedy"] for result in results if result["greedy"] is not None]
        met = float(np.mean(last)) >= case.least
        good &= met
        each = ", ".join(f"{result['seed']}: {result['last']:.1f}" for result in results)
        rows.append(
            f"{begins} {spread(last)} | {each} | {spread(tested)} | {case.least:g} | {'yes' if met else 'NO'} | "
            f"[curve]({case.file_name}.png) |"
        )
    return rows, good


def report(records: Records, out: Path) -> bool:
    """Write table and curves of all that is finished, and what is not. Returns whether every threshold was met."""
    out.mkdir(parents=True, exist_ok=True)
    rows, good = table(records)
    everything = [record for case in CASES for record in records.of(case.file_name)]
    head = [
        "# Scores",
        "",
        (
            f"Default flags; mean over seeds of the last {LAST} training episodes ± 95 % interval, each seed's own mean, and "
            "100 greedy episodes of the finished model beside it. `python tests/benchmarks/scores.py` trains what has no "
            "record in `records/scores` and writes this page and the curves from there. Seeds that were run "
            "before there were records are on [a page of their own](scores-before-records.md)."
        ),
        "",
        *origins(everything),
        "",
        "| algorithm | environment | steps | last 100 episodes | seeds | greedy | at least | met | curve |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    (out / "scores.md").write_text("\n".join([*head, *rows]) + "\n")
    for case in CASES:
        if results := records.of(case.file_name):
            draw(case, results, out / f"{case.file_name}.png")
    return good


def main() -> int:
    parser = options(__doc__, "build/scores")
    parser.add_argument("--only", nargs="*", help="cases, as algorithm:environment")
    args = parser.parse_args()
    cases = [case for case in CASES if not args.only or case.name in args.only]
    if not cases:
        parser.error(f"--only must name some of {', '.join(case.name for case in CASES)}")
    work, records = args.work.resolve(), Records("scores", args.records)
    every = [(case, seed) for case in cases for seed in range(1, args.seeds + 1)]
    missing = [(case, seed) for case, seed in every if not records.has(case.file_name, seed)]
    work_through(missing, lambda job: play(*job, work, records), lambda: report(records, args.out), args.jobs)
    good = report(records, args.out)
    print("\n".join(table(records)[0]))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
