"""Each algorithm of the package, launched as a trainer would launch it: a job descriptor, the worker's command line, the
handshake with a gateway, training on the algorithm's own default environment, and `run_completed`.

Each launch leaves a smoke record in `var/smoke-records` (or `CLEANRL_SMOKE_RECORDS`), also when it fails;
`python -m cleanrl_worker.tools.coverage_matrix` makes docs/coverage.md from them.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.json_format import MessageToDict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import cleanrl_worker
from cleanrl_protocol.localgateway import LocalGateway
from cleanrl_worker.telemetry import read_events
from cleanrl_worker.tools import schemas, smoke_record

PROJECT = Path(cleanrl_worker.__file__).resolve().parents[1]
RECORDS = Path(os.environ.get("CLEANRL_SMOKE_RECORDS") or PROJECT / "var" / "smoke-records")


LONGEST = 270
"""Seconds; a launch takes a few, and a machine that is busy otherwise gets the benefit of the doubt."""


class Smoke(NamedTuple):
    """Flags that give at least two gradient updates, and the tag of the loss that shows them."""

    total_timesteps: int
    algo_params: dict[str, Any]
    tag: str


ROLLOUTS = {"num_steps": 64, "num_minibatches": 2, "update_epochs": 2}
LEARN_SOON = {"learning_starts": 100, "buffer_size": 500, "batch_size": 16}
IMAGES = {"learning_starts": 90, "buffer_size": 500, "batch_size": 4}
TEACHER = "a model file that the test makes"
LESSONS = {"teacher_eval_episodes": 1, "teacher_steps": 100, "offline_steps": 100, "teacher_model_path": TEACHER}
STUDENT = {**IMAGES, **LESSONS, "batch_size": 2}
FEW_IMAGES = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1}
LOCAL = {"local_num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1, "device_ids": [0, 1]}
PHASES = {
    "num_envs": 2,
    "num_steps": 8,
    "num_minibatches": 2,
    "n_iteration": 2,
    "e_auxiliary": 1,
    "num_aux_rollouts": 2,
}

SMOKES = {
    "c51": Smoke(500, LEARN_SOON, "losses/loss"),
    "c51_atari": Smoke(320, IMAGES, "losses/loss"),
    "c51_atari_jax": Smoke(320, IMAGES, "losses/loss"),
    "c51_jax": Smoke(500, LEARN_SOON, "losses/loss"),
    "ddpg_continuous_action": Smoke(500, LEARN_SOON, "losses/qf1_loss"),
    "ddpg_continuous_action_jax": Smoke(500, LEARN_SOON, "losses/qf1_loss"),
    "dqn": Smoke(500, LEARN_SOON, "losses/td_loss"),
    "dqn_atari": Smoke(320, IMAGES, "losses/td_loss"),
    "dqn_atari_jax": Smoke(320, IMAGES, "losses/td_loss"),
    "dqn_jax": Smoke(500, LEARN_SOON, "losses/td_loss"),
    "ppg_procgen": Smoke(64, PHASES, "losses/aux/kl_loss"),
    "ppo": Smoke(512, ROLLOUTS, "losses/policy_loss"),
    "ppo_atari": Smoke(32, FEW_IMAGES, "losses/policy_loss"),
    "ppo_atari_envpool": Smoke(32, FEW_IMAGES, "losses/policy_loss"),
    "ppo_atari_envpool_xla_jax": Smoke(32, FEW_IMAGES, "losses/policy_loss"),
    "ppo_atari_envpool_xla_jax_scan": Smoke(32, FEW_IMAGES, "losses/policy_loss"),
    "ppo_atari_lstm": Smoke(32, FEW_IMAGES, "losses/policy_loss"),
    "ppo_atari_multigpu": Smoke(64, LOCAL, "losses/policy_loss"),
    "ppo_continuous_action": Smoke(128, ROLLOUTS, "losses/policy_loss"),
    "ppo_gru": Smoke(512, ROLLOUTS, "losses/policy_loss"),
    "ppo_pettingzoo_ma_atari": Smoke(32, FEW_IMAGES, "losses/policy_loss"),
    "ppo_procgen": Smoke(32, FEW_IMAGES, "losses/policy_loss"),
    "ppo_rnd_envpool": Smoke(32, {**FEW_IMAGES, "num_iterations_obs_norm_init": 1}, "losses/fwd_loss"),
    "pqn": Smoke(512, ROLLOUTS, "losses/td_loss"),
    "pqn_atari_envpool": Smoke(32, FEW_IMAGES, "losses/td_loss"),
    "pqn_atari_envpool_lstm": Smoke(32, FEW_IMAGES, "losses/td_loss"),
    "qdagger_dqn_atari_impalacnn": Smoke(320, STUDENT, "losses/loss"),
    "qdagger_dqn_atari_jax_impalacnn": Smoke(320, STUDENT, "losses/loss"),
    "rainbow_atari": Smoke(320, IMAGES, "losses/td_loss"),
    "rpo_continuous_action": Smoke(128, ROLLOUTS, "losses/policy_loss"),
    "sac_atari": Smoke(320, IMAGES, "losses/qf1_loss"),
    "sac_continuous_action": Smoke(500, LEARN_SOON, "losses/qf1_loss"),
    "td3_continuous_action": Smoke(500, LEARN_SOON, "losses/qf1_loss"),
    "td3_continuous_action_jax": Smoke(500, LEARN_SOON, "losses/qf1_loss"),
}

SHIPPED = sorted(path.stem for path in (schemas.PACKAGE / "algorithms").glob("[!_]*.py"))


@pytest.fixture(scope="module")
def gateway() -> Iterator[LocalGateway]:
    serving = LocalGateway().start()
    yield serving
    serving.stop()


def descriptor(algo: str, run_id: str, smoke: Smoke, env_id: str) -> dict[str, Any]:
    """What a trainer submits."""
    worker = {
        "run_id": run_id,
        "algo": algo,
        "env_id": env_id,
        "seed": 1,
        "total_timesteps": smoke.total_timesteps,
        "extras": {"algo_params": smoke.algo_params, "tensorboard_dir": "tensorboard", "notes": "launch smoke"},
    }
    return {
        "run_name": f"smoke-{algo}",
        "resources": {"cpus": 1, "memory_mb": 1024, "gpus": {"requested": 0, "mandatory": False}},
        "metadata": {"worker": {"module": "cleanrl_worker.cli", "config": worker}},
    }


def make_teacher(folder: Path) -> str:
    """A value network for Breakout that knows nothing, relative to where the worker starts."""
    import torch

    from cleanrl_worker.agents.atari_values import QNetwork

    torch.save(QNetwork(actions=4).state_dict(), folder / "dqn_atari.cleanrl_model")
    return "../dqn_atari.cleanrl_model"


def logged_losses(run_dir: Path, tag: str) -> dict[int, float]:
    """Step -> value of a tag, over every TensorBoard file of the run."""
    points: dict[int, float] = {}
    for folder in {path.parent for path in run_dir.rglob("events.out.tfevents.*")}:
        accumulator = EventAccumulator(str(folder))
        accumulator.Reload()
        if tag in accumulator.Tags()["scalars"]:
            points |= {scalar.step: scalar.value for scalar in accumulator.Scalars(tag)}
    return points


def commit() -> str:
    """The commit that was launched, marked when the tree holds more than that."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--short=12", "HEAD")
    changed = git("status", "--porcelain", "--", "cleanrl_worker", "cleanrl_protocol", "pyproject.toml", "uv.lock")
    return f"{head} and changes" if head and changed else head


def test_every_shipped_algorithm_has_smoke_flags() -> None:
    assert SHIPPED, "the package ships no algorithm"
    assert set(SHIPPED) <= set(SMOKES), "give the new algorithm a row in SMOKES"


@pytest.mark.integration
@pytest.mark.parametrize("algo", SHIPPED)
def test_launch(algo: str, gateway: LocalGateway, tmp_path: Path) -> None:
    smoke = SMOKES[algo]
    env_id = schemas.generate()["algorithms"][algo]["env_id"]
    run_id = f"smoke-{algo.replace('_', '-')}"
    run_dir = tmp_path / "run"
    config = tmp_path / "config.json"
    if smoke.algo_params.get("teacher_model_path") == TEACHER:
        smoke = smoke._replace(algo_params={**smoke.algo_params, "teacher_model_path": make_teacher(tmp_path)})
    payload = descriptor(algo, run_id, smoke, env_id)
    config.write_text(json.dumps(payload))
    arguments = ["-m", "cleanrl_worker.cli", "--config", "config.json", "--grpc", "--grpc-target", gateway.target]
    environment = os.environ | {"CLEANRL_RUN_DIR": str(run_dir), "OMP_NUM_THREADS": "1"}

    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST,
        )
        code: int | str = done.returncode
        said = done.stderr
    except subprocess.TimeoutExpired as error:
        code, said = f"none after {LONGEST} s", str(error.stderr)
    seconds = time.monotonic() - began

    events = list(read_events(run_dir / "events.jsonl"))
    names = [event["event"] for event in events]
    final: dict[str, Any] = events[-1] if events else {"event": "no event at all", "payload": {}}
    losses = logged_losses(run_dir, smoke.tag)
    seen = gateway.runs.get(run_id)
    registration = MessageToDict(seen.registrations[-1]) if seen is not None and seen.registrations else {}
    artifacts = sorted(path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*") if path.is_file())
    steps = max([event["payload"].get("step") or 0 for event in events], default=0)
    completed = code == 0 and final["event"] == "run_completed"
    outcome = "completed" if completed else f"failed: {final['event']}, exit code {code}"
    if completed and len(losses) < 2:
        outcome = "completed without two gradient updates"
    trained = final["timestamp"] - events[names.index("training_started")]["timestamp"] if completed else 0.0
    smoke_record.write(
        RECORDS,
        smoke_record.SmokeRecord(
            algo=algo,
            env_id=env_id,
            outcome=outcome,
            payload=payload,
            command=[argument if argument != gateway.target else "127.0.0.1:PORT" for argument in arguments],
            handshake=registration,
            events=[name for name, _ in groupby(seen.names if seen is not None else [])],
            artifacts=artifacts,
            updates=len(losses),
            update_tag=smoke.tag,
            steps=steps,
            steps_per_second=steps / trained if trained > 0 else 0.0,
            seconds=round(seconds, 1),
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            commit=commit(),
            versions={"python": platform.python_version()}
            | {name: importlib.metadata.version(name) for name in ("cleanrl-operator", "gymnasium", "numpy", "torch")},
        ),
    )

    assert code == 0, said
    assert final["event"] == "run_completed", names
    assert final["payload"]["outcome"] == "completed"
    assert steps >= smoke.total_timesteps

    assert len(losses) >= 2, f"fewer than two gradient updates: {smoke.tag} was logged at {sorted(losses)}"
    assert all(math.isfinite(value) for value in losses.values())

    assert seen is not None and registration, "the worker never registered"
    assert registration["runId"] == run_id
    assert registration["algo"] == algo
    assert registration["envId"] == env_id
    assert names.index("run_started") < names.index("training_started")
    for name in ("run_started", "training_started", "run_completed"):
        assert name in seen.names, f"{name} did not reach the gateway"

    assert {"analytics.json", "config.json", "events.jsonl", "logs/cleanrl.stdout.log"} <= set(artifacts)
    manifest = json.loads((run_dir / "analytics.json").read_text())
    assert (manifest["algo"], manifest["env_id"], manifest["outcome"]) == (algo, env_id, "completed")
    assert manifest["artifacts"]["tensorboard"]["event_files"] >= 1
    saved = manifest["artifacts"]["checkpoints"]
    assert saved and saved[-1]["step"] >= smoke.total_timesteps, "no checkpoint of the run's end"
