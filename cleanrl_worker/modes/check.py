"""Try out, without training, what a run needs: make its environments, read its checkpoint or policy.

`python -m cleanrl_worker.launcher cleanrl_worker.modes.check --algo ppo --env-id CartPole-v1` prints a line of JSON: the spaces
of each environment, and `problems`, a sentence each. It is what a dry run in a pod adds to looking at what is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from cleanrl_worker.training import checkpoints
from cleanrl_worker.training.envs import make_env
from cleanrl_worker.training.errors import RunEnded


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="check", allow_abbrev=False)
    parser.add_argument("--algo", required=True)
    parser.add_argument("--env-id", action="append", required=True, help="given several times, the last is trained for")
    parser.add_argument("--policy-path", type=Path)
    parser.add_argument("--checkpoint-path", type=Path)
    parser.add_argument("--sha256")
    args = parser.parse_args(argv)
    with contextlib.redirect_stdout(sys.stderr):  # whatever libraries have to say
        found = _look(args)
    print(json.dumps(found), flush=True)
    return 0


def _look(args: argparse.Namespace) -> dict[str, Any]:
    environments: dict[str, Any] = {}
    problems: list[str] = []
    for env_id in dict.fromkeys(args.env_id):
        try:
            env = make_env(env_id)
        except RunEnded as error:
            problems.append(str(error))
            continue
        environments[env_id] = {"observation": str(env.observation_space), "action": str(env.action_space)}
        env.close()
    if len({str(spaces) for spaces in environments.values()}) > 1:
        problems.append("The stages of the curriculum have different spaces: one network can't learn them all.")
    if not problems:
        try:
            _read(args)
        except RunEnded as error:
            problems.append(str(error))
    return {"environments": environments, "problems": problems}


def _read(args: argparse.Namespace) -> None:
    if args.policy_path is not None:
        from cleanrl_worker.evals import Evaluation

        given = {"algo": args.algo, "sha256": args.sha256}
        Evaluation(args.policy_path, args.env_id[-1], most_episodes=1, **given).close()
    if args.checkpoint_path is not None:
        try:
            found = checkpoints.find(args.checkpoint_path, args.sha256)
        except (checkpoints.BadCheckpoint, OSError) as error:
            raise RunEnded(f"{error} Choose another checkpoint or model file.") from error
        problem = None if isinstance(found, Path) else checkpoints.mismatch(found, args.algo, args.env_id[-1])
        if problem is not None:
            raise RunEnded(problem)


if __name__ == "__main__":
    raise SystemExit(main())
