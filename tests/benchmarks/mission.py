"""Levels that say what to do, with and without being told: success of `ppo` after a short training, side by side.

    python tests/benchmarks/mission.py [--seeds 1] [--steps 150000] [--work build/mission] [--out docs/benchmarks]

A run of 150,000 steps takes about seven minutes of one core, and there are four for each seed. Finished runs are files in the
work folder: a second call goes on where the first was stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from jobs import saying_when_stopped, train
from reporting import commit, machine

LEVELS = {
    "MiniGrid-GoToDoor-5x5-v0": "stand at the door of the named colour and say so; a wrong door ends the episode",
    "BabyAI-GoToLocalS5N2-v0": "go to the named one of two objects; the other one costs time only",
}
CHOICES = ("words", "none")
FLAGS = ["--num-envs", "16", "--num-steps", "128", "--num-minibatches", "8", "--learning-rate", "1e-3"]
EPISODES = 500


def play(level: str, choice: str, seed: int, steps: int, work: Path) -> dict[str, Any]:
    """Train one policy, or go on with it, judge it, and keep the result in a file."""
    folder = work / f"{level}-{choice}-{seed}"
    result = folder / "result.json"
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    flags = ["--env-id", level, "--minigrid-mission", choice, "--total-timesteps", str(steps), "--seed", str(seed)]
    train(["-m", "cleanrl_worker.algorithms.ppo", *flags, "--no-cuda", "--save-model", *FLAGS], folder)
    from cleanrl_worker.evals import evaluate

    (model,) = folder.glob("runs/*/*.cleanrl_model")
    returns = np.asarray(evaluate("ppo", model, level, episodes=EPISODES, seed=10_000).returns)
    summary = {"level": level, "choice": choice, "seed": seed, "steps": steps, "commit": commit(), "machine": machine()}
    summary |= {"success": float((returns > 0).mean()), "return": float(returns.mean())}
    result.write_text(json.dumps(summary))
    return summary


def report(results: list[dict[str, Any]], out: Path) -> bool:
    """Write the table. Returns whether being told was better on every level."""
    rows, better = [], True
    for level, words in LEVELS.items():
        returns = {}
        for choice in CHOICES:
            found = [result for result in results if (result["level"], result["choice"]) == (level, choice)]
            success, ret = (np.mean([result[name] for result in found]) for name in ("success", "return"))
            returns[choice] = ret
            shown = f"`--minigrid-mission {choice}`"
            rows.append(f"| {level}: {words} | {shown} | {len(found)} | {100 * success:.1f} % | {ret:.3f} |")
        better &= bool(returns["words"] > returns["none"])
    steps = sorted({result["steps"] for result in results})
    head = [
        "# The mission",
        "",
        (
            f"`ppo` with `{' '.join(FLAGS)}`, {', '.join(f'{number:,}' for number in steps)} steps; success (a return above 0) "
            f"and mean return over {EPISODES} new levels, mean over seeds. `python tests/benchmarks/mission.py` reruns it."
        ),
        "",
        *sorted({f"Commit {result['commit']}, {result['machine']}." for result in results}),
        "",
        "| level | told | seeds | success | return |",
        "|---|---|---|---|---|",
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "mission.md").write_text("\n".join([*head, *rows]) + "\n")
    print("\n".join(rows))
    return better


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--work", type=Path, default=Path("build/mission"))
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    args = parser.parse_args()
    began, results = time.monotonic(), []
    todo = [(level, choice, seed) for seed in range(1, args.seeds + 1) for level in LEVELS for choice in CHOICES]
    for number, (level, choice, seed) in enumerate(todo, 1):
        result = play(level, choice, seed, args.steps, args.work.resolve())
        results.append(result)
        print(
            f"[{number}/{len(todo)}, {time.monotonic() - began:.0f} s] {level}, {choice}, seed {seed}: "
            f"success {result['success']:.3f}, return {result['return']:.3f}",
            flush=True,
        )
    return 0 if report(results, args.out) else 1


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))
