"""What FastLane costs: `python tests/benchmarks/fastlane_overhead.py [--rounds N] [--seconds S]`.

Three arms take turns in one process, so that a busy machine disturbs all of them alike: no FastLane, metrics only
(frames off), and single mode at 10 frames a second with at most 256 pixels. The loop is a vector environment with a
linear policy in NumPy, cheaper than any algorithm, so the per-step share that it shows is an upper bound. Figures are
steps per CPU second, compared between neighbouring turns. On a busy machine 10 frames per wall second are more per CPU
second: "at 10 fps" scales the cost to exactly 10. "in calls" is the CPU time spent inside FastLane's calls, rendering
included, at 10 frames per CPU second; it needs no comparison, so it stays steady where the others are noisy.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import gymnasium as gym
import numpy as np
from jobs import saying_when_stopped

from cleanrl_worker.fastlane import gate, segment
from cleanrl_worker.fastlane.exporter import Exporter, RunState
from cleanrl_worker.fastlane.frames import render_slots
from cleanrl_worker.fastlane.publisher import Publisher
from cleanrl_worker.fastlane.settings import FastLaneSettings

NUM_ENVS = 4
FRAMES_PER_SECOND = 10
TARGETS = {
    ("CartPole-v1", "frames off"): 1.0,
    ("CartPole-v1", "single"): 3.0,
    ("MiniGrid-Empty-8x8-v0", "frames off"): 1.0,
    ("MiniGrid-Empty-8x8-v0", "single"): 10.0,
}
SCRAPE_TARGET_MS = 5.0


@dataclass
class Arm:
    name: str
    publisher: Publisher
    rates: list[float] = field(default_factory=list)
    """Steps per CPU second, one per round."""
    frames: int = 0
    cpu: float = 0.0
    frame_cpu: float = 0.0
    """CPU seconds spent on frames."""


def settings(run_id: str, mode: str) -> FastLaneSettings:
    return FastLaneSettings(
        run_id=run_id,
        enabled=True,
        mode=mode,
        slot=0,
        grid_limit=NUM_ENVS,
        num_envs=NUM_ENVS,
        interval=1 / FRAMES_PER_SECOND,
        max_dim=256,
    )


def image_observation(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    return gym.wrappers.FlattenObservation(gym.wrappers.FilterObservation(env, ["image"]))


def make(env_id: str) -> Callable[[], gym.Env[Any, Any]]:
    def thunk() -> gym.Env[Any, Any]:
        if env_id.startswith("MiniGrid"):
            import minigrid  # noqa: F401 - registers its environments

        env = gym.make(env_id, render_mode="rgb_array")
        env = image_observation(env) if env_id.startswith("MiniGrid") else env
        return gym.wrappers.RecordEpisodeStatistics(env)

    return thunk


def measure(env_id: str, rounds: int, seconds: float) -> list[Arm]:
    run_id = f"benchmark-{os.getpid()}"
    arms = [
        Arm("no FastLane", Publisher(settings("", "off"))),
        Arm("frames off", Publisher(settings(run_id + "-off", "off"))),
        Arm("single", Publisher(settings(run_id + "-single", "single"))),
    ]
    envs = gym.vector.SyncVectorEnv(
        [make(env_id) for _ in range(NUM_ENVS)], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    observations, _ = envs.reset(seed=1)
    size = int(np.prod(envs.single_observation_space.shape or (1,)))
    actions = int(envs.single_action_space.n)  # type: ignore[attr-defined]
    weights = np.random.default_rng(1).normal(size=(size, actions))
    order = random.Random(1)
    envs.envs[0].render()  # the first one opens fonts and surfaces
    try:
        for number in range(rounds + 1):
            for arm in order.sample(arms, len(arms)):
                observations = run(arm, envs, observations, weights, seconds, counts=number > 0)
    finally:
        for arm in arms:
            arm.publisher.close()
        for suffix in ("-off", "-single"):
            segment.unlink_run(run_id + suffix)
        envs.close()
    return arms


def run(arm: Arm, envs: Any, observations: Any, weights: Any, seconds: float, *, counts: bool) -> Any:
    """One turn: the loop as a training algorithm has it, for so many CPU seconds."""
    publisher, publishes = arm.publisher, arm.name != "no FastLane"
    slots = publisher.shown_slots
    steps = frames = 0
    frame_cpu = 0.0
    finished: deque[float] = deque(maxlen=100)
    start = time.process_time()
    while (cpu := time.process_time() - start) < seconds:
        for _ in range(50):
            logits = observations.reshape(NUM_ENVS, -1) @ weights
            observations, rewards, terminations, truncations, infos = envs.step(logits.argmax(axis=1))
            steps += NUM_ENVS
            if "final_info" in infos:  # every algorithm takes its finished episodes out of here
                episodes = infos["final_info"]["episode"]
                returns, lengths = episodes["r"].tolist(), episodes["l"].tolist()
                for index in np.flatnonzero(terminations | truncations).tolist():
                    finished.append(returns[index])
                    if publishes:
                        publisher.episode(returns[index], lengths[index])
            if publishes:
                publisher.step(NUM_ENVS, rewards)
                if publisher.frame_due():
                    before = time.process_time()
                    publisher.frame(lambda: render_slots(envs, slots))
                    frame_cpu += time.process_time() - before
                    frames += 1
    if counts:
        arm.rates.append(steps / cpu)
        arm.frames += frames
        arm.cpu += cpu
        arm.frame_cpu += frame_cpu
    return observations


def report(env_id: str, arms: list[Arm], step_cost: float) -> None:
    base = arms[0]
    for arm in arms:
        # Paired by round: neighbours in time saw the same machine.
        costs = [100 * (1 - rate / reference) for rate, reference in zip(arm.rates, base.rates, strict=True)]
        cost = statistics.median(costs)
        per_second = arm.frames / arm.cpu
        scaled = cost * FRAMES_PER_SECOND / per_second if per_second > FRAMES_PER_SECOND else cost
        calls = statistics.median(base.rates) * step_cost if arm is not base else 0.0
        calls += FRAMES_PER_SECOND * arm.frame_cpu / arm.frames if arm.frames else 0.0
        target = TARGETS.get((env_id, arm.name))
        print(
            f"{env_id:24} {arm.name:12} {statistics.median(arm.rates):12,.0f} {per_second:10.1f}"
            f" {cost:8.2f} % {scaled:8.2f} % {100 * calls:8.2f} %   {f'at most {target:g} %' if target else ''}"
        )


def step_cost() -> float:
    """CPU seconds per environment step of the calls that every step makes, flushes of the metrics included."""
    run_id = f"benchmark-{os.getpid()}-step"
    publisher = Publisher(settings(run_id, "off"))
    rewards = np.ones(NUM_ENVS)
    calls = 100_000
    start = time.process_time()
    for _ in range(calls):
        publisher.step(NUM_ENVS, rewards)
        publisher.frame_due()
    cost = (time.process_time() - start) / calls / NUM_ENVS
    publisher.close()
    segment.unlink_run(run_id)
    return cost


def measure_scrape(scrapes: int) -> list[float]:
    run_id = f"benchmark-{os.getpid()}-scrape"
    publisher = Publisher(settings(run_id, "single"))
    publisher.step(1000, 1.0)
    publisher.episode(100.0, 100)
    publisher.scalars({f"losses/figure_{index}": float(index) for index in range(20)})
    publisher.close()
    exporter = Exporter(run_id, "127.0.0.1", 0, lambda: RunState(info={"run_id": run_id}, step=1000, total_steps=5000))
    exporter.start()
    try:
        url = f"http://127.0.0.1:{exporter.port}/metrics"
        times = []
        for _ in range(scrapes):
            start = time.perf_counter()
            with urllib.request.urlopen(url) as answer:
                answer.read()
            times.append(1000 * (time.perf_counter() - start))
            time.sleep(1 / gate.PER_SECOND)  # a caller in a hurry is turned away
        return sorted(times)
    finally:
        exporter.close()
        segment.unlink_run(run_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.05, help="CPU seconds per arm and round")
    parser.add_argument("--scrapes", type=int, default=100)
    options = parser.parse_args()

    columns = f"{'steps/CPU s':>12} {'frames/s':>10} {'cost':>10} {'at 10 fps':>10} {'in calls':>10}"
    print(f"{'environment':24} {'arm':12} {columns}   target")
    for env_id in ("CartPole-v1", "MiniGrid-Empty-8x8-v0"):
        report(env_id, measure(env_id, options.rounds, options.seconds), step_cost())
    times = measure_scrape(options.scrapes)
    print(
        f"scrape of /metrics: median {statistics.median(times):.2f} ms, 99th percentile "
        f"{times[int(0.99 * (len(times) - 1))]:.2f} ms   target under {SCRAPE_TARGET_MS:g} ms"
    )


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))
