"""What surrounds an Atari agent's network, in frames per CPU second, beside the usual way of doing the same.

    python tests/benchmarks/frames.py [--seconds 4] [--page docs/benchmarks/frames.md]

A frame is one step of the agent. The usual way is rebuilt here as it is usually described: a chain of gymnasium's wrappers with
a stack at the end; a replay memory that stores whole stacks, before and after the action; a segment tree of Python numbers;
observations that become floats when they are stored and are divided when they are used. The emulator costs both ways the
same: its own time (four frames of the game) is measured and taken off in the second row. The last row has the network in it,
since how images are laid out decides over its speed. Each has a process of its own with one thread; they take turns, and the
best of their turns counts.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from jobs import saying_when_stopped
from replay import BATCH, STACK, PythonSumTree
from reporting import table_page

from cleanrl_worker.training.memory import keep_freed_memory

GAME = "BreakoutNoFrameskip-v4"
MEMORY = 20_000
"""Transitions in the memories: what is measured does not depend on it, the machine's memory does."""
PRIORITIES = 1_000_000
EVERY = 4
"""Steps between two gradient steps."""
POOL, STEPS, EPOCHS, PARTS = 8, 128, 4, 4
"""Environments, steps, passes and minibatches of one rollout of ppo_atari_envpool."""
TURNS = 3
Work = Callable[[int], None]
Make = Callable[[], Work]


# ---------------------------------------------------------------- emulation


def our_game() -> Work:
    from cleanrl_worker.training.envs import Envs

    envs = Envs.make(GAME, 1, frames=4, flatten=False, tape=False)
    envs.reset(1)
    rng = np.random.default_rng(0)

    def play(count: int) -> None:
        for _ in range(count):
            envs.step(rng.integers(4, size=1))

    return play


def usual_game() -> Work:
    import ale_py
    import gymnasium as gym
    from gymnasium import wrappers

    gym.register_envs(ale_py)

    def make() -> gym.Env[Any, Any]:
        env: gym.Env[Any, Any] = gym.make(GAME)
        env = wrappers.RecordEpisodeStatistics(env)
        env = wrappers.MaxAndSkipObservation(env, skip=4)
        env = wrappers.TransformReward(env, np.sign)  # type: ignore[arg-type]
        env = wrappers.ResizeObservation(env, (84, 84))
        env = wrappers.GrayscaleObservation(env)
        return wrappers.FrameStackObservation(env, 4)

    envs = gym.vector.SyncVectorEnv([make])
    envs.reset(seed=1)
    rng = np.random.default_rng(0)

    def play(count: int) -> None:
        for _ in range(count):
            envs.step(rng.integers(4, size=1))

    return play


def bare_emulator() -> Work:
    """Four frames of the game and nothing else."""
    import ale_py
    import gymnasium as gym

    gym.register_envs(ale_py)
    game: Any = gym.make(GAME).unwrapped
    game.reset(seed=1)
    emulator = game.ale

    def play(count: int) -> None:
        for _ in range(count):
            for _frame in range(4):
                emulator.act(0)
            if emulator.game_over():
                emulator.reset_game()

    return play


# ---------------------------------------------------------------- replay


def stacks(rng: np.random.Generator, count: int = 64) -> np.ndarray:
    """Observations of one episode: each has three images of the one before it."""
    images = rng.integers(0, 256, (count + 3, *STACK[1:]), dtype=np.uint8)
    return np.stack([images[i : i + 4] for i in range(count)])


class WholeStacks:
    """The last transitions, each with all eight images."""

    def __init__(self) -> None:
        self.obs, self.next_obs = (np.zeros((MEMORY, *STACK), np.uint8) for _ in range(2))
        self.actions, self.rewards, self.dones = (np.zeros(MEMORY, np.float32) for _ in range(3))
        self.added = 0

    def add(self, obs: np.ndarray, next_obs: np.ndarray) -> None:
        at = self.added % MEMORY
        self.obs[at], self.next_obs[at] = np.array(obs), np.array(next_obs)
        self.actions[at], self.rewards[at], self.dones[at] = 1, 0.0, 0.0
        self.added += 1

    def at(self, places: Any) -> tuple[np.ndarray, ...]:
        columns = (self.obs, self.next_obs, self.actions, self.rewards, self.dones)
        return tuple(column[places] for column in columns)


def our_replay() -> Work:
    from cleanrl_worker.training.replay_frames import FrameReplay

    rng = np.random.default_rng(0)
    memory, episode = FrameReplay(MEMORY, STACK, rng), stacks(rng)
    return remembering(
        lambda t: memory.add(episode[t], 1, 0.0, episode[t + 1], terminated=False, truncated=t == len(episode) - 2),
        lambda: memory.sample(BATCH),
        len(episode) - 1,
    )


def usual_replay() -> Work:
    rng = np.random.default_rng(0)
    memory, episode = WholeStacks(), stacks(rng)
    return remembering(
        lambda t: memory.add(episode[t], episode[t + 1]),
        lambda: memory.at(rng.integers(0, min(memory.added, MEMORY), BATCH)),
        len(episode) - 1,
    )


def remembering(add: Callable[[int], None], sample: Callable[[], Any], length: int) -> Work:
    """Steps of an episode that is played over and over, and a sample at every fourth. Begins with a full memory."""
    for step in range(MEMORY):
        add(step % length)

    def work(count: int) -> None:
        for step in range(count):
            add((MEMORY + step) % length)
            if step % EVERY == 0:
                sample()

    return work


# ---------------------------------------------------------------- priorities


def our_priorities() -> Work:
    from cleanrl_worker.training.replay_priority import Priorities

    rng = np.random.default_rng(0)
    priorities = Priorities(PRIORITIES)
    priorities.load(rng.random(PRIORITIES) + 0.1)

    def work(count: int) -> None:
        for step in range(count):
            priorities.put(step % PRIORITIES, 1.0)
            if step % EVERY == 0:
                priorities.set(priorities.draw(BATCH, PRIORITIES, rng), rng.random(BATCH) + 0.1)

    return work


def usual_priorities() -> Work:
    tree = PythonSumTree(PRIORITIES)
    tree.sums[tree.leaves : tree.leaves + PRIORITIES] = (np.random.default_rng(0).random(PRIORITIES) + 0.1).tolist()
    for node in range(tree.leaves - 1, 0, -1):
        tree.sums[node] = tree.sums[2 * node] + tree.sums[2 * node + 1]

    def work(count: int) -> None:
        for step in range(count):
            tree.set(step % PRIORITIES, 1.0)
            if step % EVERY == 0:
                part = tree.sums[1] / BATCH
                for place in [tree.find((i + random.random()) * part) for i in range(BATCH)]:
                    tree.set(place, random.random() + 0.1)

    return work


# ---------------------------------------------------------------- rollouts of envpool


def rolling(roll: Callable[[], None]) -> Work:
    """As many rollouts as that many frames are."""

    def work(count: int) -> None:
        for _ in range(count // (STEPS * POOL)):
            roll()

    return work


def our_rollout() -> Work:
    import torch

    from cleanrl_worker.agents.atari import nature_layers, scaled

    rng = np.random.default_rng(0)
    network = torch.nn.Sequential(*nature_layers())
    seen = rng.integers(0, 256, (POOL, *STACK), dtype=np.uint8)
    kept = np.zeros((STEPS, POOL, *STACK), np.uint8)

    def roll() -> None:
        for t in range(STEPS):
            with torch.no_grad():
                network(scaled(torch.as_tensor(seen)))
            kept[t] = seen
        flat = kept.reshape(-1, *STACK)
        for _epoch in range(EPOCHS):
            order = rng.permutation(len(flat))
            for rows in np.split(order, PARTS):
                network.zero_grad()
                network(scaled(torch.as_tensor(flat[rows]))).mean().backward()

    return rolling(roll)


def usual_rollout() -> Work:
    import torch

    from cleanrl_worker.agents.atari import nature_layers

    rng = np.random.default_rng(0)
    network = torch.nn.Sequential(*nature_layers())
    seen = rng.integers(0, 256, (POOL, *STACK), dtype=np.uint8)
    kept = torch.zeros((STEPS, POOL, *STACK))

    def roll() -> None:
        for t in range(STEPS):
            kept[t] = torch.Tensor(seen)
            with torch.no_grad():
                network(kept[t] / 255.0)
        flat = kept.reshape(-1, *STACK)
        for _epoch in range(EPOCHS):
            order = rng.permutation(len(flat))
            for rows in np.split(order, PARTS):
                network.zero_grad()
                network(flat[rows] / 255.0).mean().backward()

    return rolling(roll)


# ---------------------------------------------------------------- measuring


_work: Work
"""What this process was started for."""


def _begin(make: Make, *, ours: bool) -> None:
    import torch

    torch.set_num_threads(1)
    if ours:  # as every algorithm of ours does when it begins
        keep_freed_memory()
    global _work
    _work = make()


def rate(frames: int) -> float:
    began = time.process_time()
    _work(frames)
    return frames / (time.process_time() - began)


def process(make: Make, *, ours: bool) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), partial(_begin, make, ours=ours))


def compare(ours: Make, usual: Make, seconds: float) -> tuple[float, float]:
    """The best rate of each in some turns, which take about as long as was asked for."""
    batch = STEPS * POOL
    with process(ours, ours=True) as mine, process(usual, ours=False) as theirs:
        ways = [partial(lambda way, frames: way.submit(rate, frames).result(), way) for way in (mine, theirs)]
        lengths = [max(int(measured(batch) * seconds / TURNS) // batch, 1) * batch for measured in ways]
        turns = [[measured(length) for measured, length in zip(ways, lengths, strict=True)] for _ in range(TURNS)]
    return max(turn[0] for turn in turns), max(turn[1] for turn in turns)


CASES: tuple[tuple[str, float, Make, Make], ...] = (
    ("one game, skipped, grey, 84x84, stacked", 0, our_game, usual_game),
    ("replay: a step kept, 32 of them drawn at every fourth", 2, our_replay, usual_replay),
    ("priorities of a million: one new, 32 drawn and changed at every fourth", 10, our_priorities, usual_priorities),
    ("rollouts of eight games: kept, seen by the network, learned from in four passes", 2, our_rollout, usual_rollout),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="CPU seconds of each measurement, about")
    parser.add_argument("--page", type=Path, help="a file for the table in Markdown")
    args = parser.parse_args()
    rows: list[tuple[str, ...]] = []

    def show(name: str, least: float, mine: float, theirs: float) -> None:
        met = "-" if not least else "yes" if mine >= least * theirs else "NO"
        rows.append(
            (name, f"{mine:,.0f}", f"{theirs:,.0f}", f"{mine / theirs:.1f}", f"{least:g}" if least else "-", met)
        )
        print(
            f"{name:72} {mine:12,.0f} {theirs:12,.0f} {mine / theirs:6.1f} times, at least {least:g}: {met}", flush=True
        )

    for name, least, ours, usual in CASES:
        mine, theirs = compare(ours, usual, args.seconds)
        show(name, least, mine, theirs)
        if ours is our_game:
            bare = max(compare(bare_emulator, bare_emulator, args.seconds))
            around = [1 / (1 / found - 1 / bare) for found in (mine, theirs)]
            show(f"the same without the emulator's own time ({bare:,.0f})", 2, *around)
    if args.page:
        args.page.write_text(page(rows))
    return 0 if all(row[-1] != "NO" for row in rows) else 1


def page(rows: list[tuple[str, ...]]) -> str:
    about = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2].strip().replace("\n", " ")
    about += " `python tests/benchmarks/frames.py --page docs/benchmarks/frames.md` measures again."
    columns = ("what", "ours", "the usual way", "times", "at least", "met")
    return table_page("Around the network: frames per CPU second", about, columns, rows)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(saying_when_stopped(main))
