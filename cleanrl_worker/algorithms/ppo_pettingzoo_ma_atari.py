"""PPO by self-play on Atari games for several players: one network plays all sides. The algorithm is `ppo_atari`'s.

Every player is an environment, so `--num-envs 16` are eight games of two. Booleans are taken as `--anneal-lr`, `--no-anneal-lr`
or `--anneal-lr False`.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass

from cleanrl_worker.agents.atari import NatureAgent
from cleanrl_worker.algorithms import ppo_atari
from cleanrl_worker.training.envs import Step
from cleanrl_worker.training.pettingzoo import PlayersEnvs
from cleanrl_worker.training.ppo_torch import seed_torch
from cleanrl_worker.training.rollout import check_rollouts
from cleanrl_worker.training.run import Run, launch

ACTION_SPACES = ("discrete",)
TRUE, FALSE = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0")


@dataclass
class Args(ppo_atari.Args):
    exp_name: str = "ppo_pettingzoo_ma_atari"
    """the name of this experiment"""
    env_id: str = "pong_v3"
    """the id of the environment, as PettingZoo calls it"""
    total_timesteps: int = 20_000_000
    """total timesteps of the experiment"""
    num_envs: int = 16
    """the number of players over all parallel games"""


def train(args: Args, run: Run) -> None:
    check_rollouts(args)
    envs = run.use_envs(PlayersEnvs(args.env_id, args.num_envs))

    def log(step: Step) -> None:
        """Each player's return under its own tag; the run's is the first player's."""
        for row, ret, length, *_ in step.episodes:
            player = row % envs.players
            tags = {f"charts/episodic_return-player{player}": ret, f"charts/episodic_length-player{player}": length}
            run.scalars(tags, step=run.step + args.num_envs)
        step.episodes = [episode for episode in step.episodes if episode.env % envs.players == 0]

    seed_torch(args)
    agent = NatureAgent(int(envs.single_action_space.n), channels=envs.obs_shape[0])
    ppo_atari.learn(args, run, envs, agent, on_step=log)


def as_switches(words: list[str]) -> list[str]:
    """`--cuda False`, `--cuda=False` and `--no-cuda` are the same; a boolean without a word after it is true."""
    switches = {item.name.replace("_", "-") for item in dataclasses.fields(Args) if item.type in (bool, "bool")}
    result: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, given, value = word.partition("=")
        name = flag.removeprefix("--").replace("_", "-")
        if not flag.startswith("--") or name not in switches:
            result.append(word)
            continue
        if not given and rest and rest[0].lower() in (*TRUE, *FALSE):
            value = rest.pop(0)
        if value.lower() in FALSE:
            result.append(f"--no-{name}")
        elif not value or value.lower() in TRUE:
            result.append(f"--{name}")
        else:
            result.append(word)  # neither: refused with the flag's own message
    return result


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, as_switches(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    raise SystemExit(main())
