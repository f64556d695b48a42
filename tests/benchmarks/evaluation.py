"""Evaluation of policies per CPU second, beside what the environment alone takes for as many steps.

    python tests/benchmarks/evaluation.py [--out docs/benchmarks]

Trains a small policy for each row first (about a minute), then measures. CPU time of one thread, the best of three: how fast
the code is, not how busy the machine. "The environment alone" is gymnasium's own class, stepped in a bare loop with actions
that were drawn beforehand, restarts included.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy is imported

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
from jobs import saying_when_stopped
from reporting import commit, machine

from cleanrl_worker.algorithms import ppo
from cleanrl_worker.evals import EvalResult, Evaluation

ROWS = (
    # environment, policy trained for so many steps, episodes, at least so many steps per CPU second
    ("CartPole-v1", 50_000, 200, 20_000),
    ("FrozenLake-v1", 512, 5000, None),
    ("FrozenLake-v1", 50_000, 5000, None),
)
REPEAT = 3


def trained(env_id: str, steps: int, folder: Path) -> Path:
    folder.mkdir()
    with contextlib.chdir(folder), contextlib.redirect_stdout(None):
        flags = ["--env-id", env_id, "--total-timesteps", str(steps), "--no-cuda", "--save-model"]
        if ppo.main(flags) != 0:
            raise SystemExit(f"ppo could not be trained on {env_id}")
    return next(folder.glob("runs/*/*.cleanrl_model"))


def best(action: Callable[[], object]) -> float:
    """CPU seconds of the quickest of a few calls."""
    seconds = []
    for _ in range(REPEAT):
        began = time.process_time()
        action()
        seconds.append(time.process_time() - began)
    return min(seconds)


def environment_alone(env_id: str, steps: int) -> float:
    """Steps per CPU second of gymnasium's class. Actions are random: how long an episode is hardly matters per step."""
    env = gym.make(env_id, disable_env_checker=True)
    actions = np.random.default_rng(1).integers(0, int(env.action_space.n), steps).tolist()  # type: ignore[attr-defined]

    def play() -> None:
        env.reset(seed=1)
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return steps / best(play)


def measure(env_id: str, model: Path, episodes: int) -> tuple[EvalResult, int, float, float]:
    """(result, steps, CPU seconds of playing, CPU seconds with everything made anew)."""
    results: list[EvalResult] = []
    evaluation = Evaluation(model, env_id, most_episodes=episodes)
    evaluation.play(min(episodes, 50), 0)
    seconds = best(lambda: results.append(evaluation.play(episodes, 1)))
    evaluation.close()

    def everything() -> None:
        anew = Evaluation(model, env_id, most_episodes=episodes)
        anew.play(episodes, 1)
        anew.close()

    return results[0], sum(results[0].lengths), seconds, best(everything)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    args = parser.parse_args()
    os.environ["GYM_GUI_FASTLANE_ONLY"] = "0"
    good, rows = True, []
    with tempfile.TemporaryDirectory() as work:
        for number, (env_id, steps, episodes, least) in enumerate(ROWS):
            print(f"{env_id}: training for {steps:,} steps ...", flush=True)
            model = trained(env_id, steps, Path(work) / str(number))
            result, played, seconds, whole = measure(env_id, model, episodes)
            alone = environment_alone(env_id, min(played, 50_000))
            rate = played / seconds
            good &= least is None or rate >= least
            rows.append(
                f"| {env_id} | ppo, {steps:,} steps | {episodes:,} | {result.avg_return:.2f} | {played:,} | {seconds:.3f} | "
                f"{whole:.3f} | {rate:,.0f} | {alone:,.0f} | {played / alone:.3f} | {f'{least:,}' if least else '-'} |"
            )
            print(rows[-1], flush=True)
    head = [
        "# Evaluation",
        "",
        (
            f"CPU seconds of one thread, the best of {REPEAT}. Playing is the evaluation with its policy and environments in "
            "place; whole includes reading the model and making the environments. The environment alone is gymnasium's class "
            "in a bare loop with given actions. FrozenLake is played from its own transition table, many episodes at a time. "
            "`python tests/benchmarks/evaluation.py` reruns it."
        ),
        "",
        f"Commit {commit()}, {machine()}, {time.strftime('%Y-%m-%d', time.gmtime())}.",
        "",
        (
            "| environment | policy | episodes | return | steps | playing, s | whole, s | steps per s | "
            "environment alone, steps per s | environment alone, s | at least |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "evaluation.md").write_text("\n".join([*head, *rows]) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))
