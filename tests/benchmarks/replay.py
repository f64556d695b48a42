"""Prioritised replay beside a segment tree in plain Python, and the memory of images stored once beside stacks stored whole.

    python tests/benchmarks/replay.py [--size 1000000] [--rounds 300]

One round is what an agent does between two gradient steps: four new transitions, a draw of 32, and their new priorities.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import numpy as np
from jobs import saying_when_stopped

from cleanrl_worker.training.replay_frames import frame_replay_bytes
from cleanrl_worker.training.replay_priority import Priorities

BATCH, NEW = 32, 4
STACK = (4, 84, 84)


class PythonSumTree:
    """The textbook's binary tree of sums in a list."""

    def __init__(self, size: int) -> None:
        self.leaves = 1
        while self.leaves < size:
            self.leaves *= 2
        self.sums = [0.0] * (2 * self.leaves)

    def set(self, place: int, value: float) -> None:
        node = place + self.leaves
        self.sums[node] = value
        node //= 2
        while node:
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]
            node //= 2

    def find(self, mass: float) -> int:
        node = 1
        while node < self.leaves:
            node *= 2
            if mass >= self.sums[node]:
                mass -= self.sums[node]
                node += 1
        return node - self.leaves


def plain_round(tree: PythonSumTree, size: int, at: int) -> None:
    for i in range(NEW):
        tree.set((at * NEW + i) % size, 1.0)
    part = tree.sums[1] / BATCH
    places = [tree.find((i + random.random()) * part) for i in range(BATCH)]
    for place in places:
        tree.set(place, random.random() + 0.1)


def array_round(priorities: Priorities, size: int, at: int, rng: np.random.Generator) -> None:
    for i in range(NEW):
        priorities.put((at * NEW + i) % size, 1.0)
    places = priorities.draw(BATCH, size, rng)
    priorities.set(places, rng.random(BATCH) + 0.1)


def microseconds(function: Callable[[int], None], rounds: int) -> float:
    began = time.process_time()
    for at in range(rounds):
        function(at)
    return (time.process_time() - began) / rounds * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Figures of the replay memory.")
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    size, rng = options.size, np.random.default_rng(0)

    plain, arrays = PythonSumTree(size), Priorities(size)
    values = rng.random(size) + 0.1
    skewed = np.where(rng.random(size) < 1e-5, 1000.0, values)
    plain.sums[plain.leaves : plain.leaves + size] = values.tolist()
    for node in range(plain.leaves - 1, 0, -1):
        plain.sums[node] = plain.sums[2 * node] + plain.sums[2 * node + 1]
    arrays.load(values)

    slow = microseconds(lambda at: plain_round(plain, size, at), options.rounds)
    quick = microseconds(lambda at: array_round(arrays, size, at, rng), options.rounds)
    arrays.load(skewed)
    worst = microseconds(lambda at: array_round(arrays, size, at, rng), min(options.rounds, 100))
    print(f"{size:,} priorities; {NEW} new, {BATCH} drawn and changed     CPU microseconds")
    print(f"  segment tree in plain Python                  {slow:10.0f}")
    print(f"  rejection in NumPy                            {quick:10.0f}   {slow / quick:.1f} times")
    print(f"  the same, a few priorities 1,000 times as large{worst:9.0f}   {slow / worst:.1f} times")

    once, image = frame_replay_bytes(size, STACK), STACK[1] * STACK[2]
    print(f"{size:,} Atari transitions                         GB")
    print(f"  each image once                               {once / 1e9:10.2f}")
    print(
        f"  stacks of four                                {4 * image * size / 1e9:10.2f}   {4 * image * size / once:.1f} times"
    )
    print(
        f"  stacks of four, before and after the action   {8 * image * size / 1e9:10.2f}   {8 * image * size / once:.1f} times"
    )


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))
