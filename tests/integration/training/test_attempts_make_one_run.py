"""Killed, corrupted, stopped, extended: what the attempts leave behind reads as one run."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from cleanrl_worker.training.checkpoints import load_checkpoint

FLAGS = ["--total-timesteps", "4096"]


@pytest.fixture(scope="module")
def whole(train_once: Any) -> Any:
    """The run that nothing happened to."""
    return train_once("ppo", FLAGS)


@pytest.fixture(scope="module")
def first(train_once: Any) -> Any:
    """A finished run of 2,048 steps, with its model."""
    return train_once("ppo", ["--total-timesteps", "2048", "--save-model"], into="first")


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar as TensorBoard reads it, but for the speed."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if tag != "charts/SPS"
    }


def scalars_in(file: Path) -> Iterator[Any]:
    """What stands in the file, also what TensorBoard would pass over."""
    return (event for event in EventFileLoader(str(file)).Load() if event.summary.value)


def test_a_killed_run_continues_its_curve_without_gap_or_repetition(train: Any, whole: Any) -> None:
    killed = train("ppo", FLAGS, requests=[(1500, "checkpoint"), (3000, "SIGKILL")], expect=None)
    assert killed.process.returncode == -signal.SIGKILL
    written = max(step for points in curves(killed.tensorboard).values() for step, _ in points)
    resumed = train("ppo", FLAGS, CLEANRL_CONTINUE="1")
    assert written > 1500, "the dead attempt should have written beyond its checkpoint"
    assert resumed.tensorboard == killed.tensorboard
    assert curves(resumed.tensorboard) == curves(whole.tensorboard)


def test_a_damaged_newest_checkpoint_costs_only_the_time_since_the_one_before(train: Any, whole: Any) -> None:
    killed = train("ppo", FLAGS, requests=[(1000, "checkpoint"), (2000, "checkpoint"), (3000, "SIGKILL")], expect=None)
    newest = killed.checkpoints[-1] / "arrays.bin"
    data = bytearray(newest.read_bytes())
    data[100] ^= 1
    newest.write_bytes(data)
    resumed = train("ppo", FLAGS, CLEANRL_CONTINUE="1")
    assert "damaged" in resumed.process.stderr
    assert "Falling back" in resumed.process.stderr
    assert curves(resumed.tensorboard) == curves(whole.tensorboard)
    a, b = (load_checkpoint(run.checkpoints[-1]).state["kept"]["agent"] for run in (whole, resumed))
    assert all(a[name].tobytes() == b[name].tobytes() for name in a)


def test_killed_before_its_first_checkpoint_it_starts_afresh_and_says_so(train: Any, whole: Any) -> None:
    train("ppo", FLAGS, requests=[(1000, "SIGKILL")], expect=None)
    again = train("ppo", FLAGS, CLEANRL_CONTINUE="1")
    assert "starting afresh" in again.process.stdout
    assert curves(again.tensorboard) == curves(whole.tensorboard)


def test_where_every_checkpoint_is_damaged_it_starts_afresh_and_keeps_the_new_ones(train: Any, whole: Any) -> None:
    saves: list[tuple[int, str]] = [(step, "checkpoint") for step in (2000, 2500, 3000)]
    killed = train("ppo", FLAGS, requests=[*saves, (3500, "SIGKILL")], expect=None)
    for folder in killed.checkpoints:
        (folder / "arrays.bin").write_bytes(b"")
    again = train("ppo", FLAGS, requests=[(500, "checkpoint"), (1000, "SIGKILL")], expect=None, CLEANRL_CONTINUE="1")
    assert "they are now in checkpoints/unusable" in again.process.stderr
    (kept,) = again.checkpoints
    third = train("ppo", FLAGS, CLEANRL_CONTINUE="1")
    assert "starting afresh" not in third.process.stdout
    assert load_checkpoint(kept).step < 1000
    assert curves(third.tensorboard) == curves(whole.tensorboard)


def test_a_signal_stops_it_with_a_checkpoint(train: Any) -> None:
    stopped = train("ppo", FLAGS, requests=[(1000, "SIGTERM")], expect=128 + signal.SIGTERM)
    (checkpoint,) = stopped.checkpoints
    loaded = load_checkpoint(checkpoint)
    assert 1000 <= loaded.step < 2000
    train("ppo", FLAGS, CLEANRL_CONTINUE="1")


def test_extending_adds_steps_to_a_full_checkpoint(train: Any, first: Any) -> None:
    extended = train(
        "ppo", ["--total-timesteps", "1024"], into="second", CLEANRL_RESUME_PATH=str(first.checkpoints[-1])
    )
    end = load_checkpoint(extended.checkpoints[-1])
    assert end.step == 3072
    assert end.meta["args"]["total_timesteps"] == 3072
    rates = curves(extended.tensorboard)["charts/learning_rate"]
    # The schedule runs over the old and the added steps: 4 of 6 rollouts were done when the extension began.
    assert [step for step, _ in rates] == [2560, 3072]
    assert abs(rates[0][1] - 2.5e-4 * (1 - 4 / 6)) < 1e-9


def test_a_later_attempt_of_an_extended_run_continues_it(train: Any, first: Any) -> None:
    path = str(first.checkpoints[-1])
    flags = ["--total-timesteps", "1024"]
    train("ppo", flags, requests=[(2600, "checkpoint"), (2700, "SIGKILL")], expect=None, CLEANRL_RESUME_PATH=path)
    second = train("ppo", flags, CLEANRL_RESUME_PATH=path, CLEANRL_CONTINUE="1")
    assert load_checkpoint(second.checkpoints[-1]).step == 3072


@pytest.mark.parametrize("source", ["checkpoint", "model"])
def test_an_extension_that_lost_its_checkpoints_begins_its_curve_again(train: Any, first: Any, source: str) -> None:
    (model,) = first.folder.glob("runs/*/ppo.cleanrl_model")
    path = str(first.checkpoints[-1] if source == "checkpoint" else model)
    flags, begins = ["--total-timesteps", "1024"], 2048 if source == "checkpoint" else 0
    alone = train("ppo", flags, into="alone", CLEANRL_RESUME_PATH=path)
    cut_off = [(begins + 600, "checkpoint"), (begins + 700, "SIGKILL")]
    killed = train("ppo", flags, requests=cut_off, expect=None, CLEANRL_RESUME_PATH=path)
    assert curves(killed.tensorboard), "the dead attempt should have written something"
    shutil.rmtree(killed.folder / "checkpoints")
    again = train("ppo", flags, CLEANRL_RESUME_PATH=path, CLEANRL_CONTINUE="1")
    assert curves(again.tensorboard) == curves(alone.tensorboard)
    points = [event.step for file in again.tensorboard.iterdir() for event in scalars_in(file)]
    assert points == [event.step for file in alone.tensorboard.iterdir() for event in scalars_in(file)]


def test_what_a_run_is_made_of_is_told_once_and_of_an_extension_too(train: Any, first: Any) -> None:
    path = str(first.checkpoints[-1])
    flags = ["--total-timesteps", "1024", "--learning-rate", "0.001"]
    train("ppo", flags, requests=[(2600, "SIGTERM")], expect=128 + signal.SIGTERM, CLEANRL_RESUME_PATH=path)
    extended = train("ppo", flags, CLEANRL_RESUME_PATH=path, CLEANRL_CONTINUE="1")
    (table,) = EventAccumulator(str(extended.tensorboard)).Reload().Tensors("hyperparameters/text_summary")
    (text,) = table.tensor_proto.string_val
    assert b"|learning_rate|0.001|" in text
    assert b"|total_timesteps|3072|" in text


def test_extending_a_bare_model_file_works_and_says_what_was_not_in_it(train: Any, first: Any, tmp_path: Path) -> None:
    (model,) = first.folder.glob("runs/*/ppo.cleanrl_model")
    weights = torch.load(model, weights_only=True)
    mosaic = tmp_path / "mosaic.pt"
    torch.save({"model_state_dict": weights, "global_step": 1024, "iteration": 2}, mosaic)
    lr = ["--learning-rate", "1e-30", "--no-anneal-lr"]  # so small that the weights stay what they were
    for path, step in ((model, 512), (mosaic, 1536)):
        second = train("ppo", ["--total-timesteps", "512", *lr], into=path.stem, CLEANRL_RESUME_PATH=str(path))
        assert "weights only" in second.process.stdout
        end = load_checkpoint(second.checkpoints[-1])
        assert end.step == step
        agent = end.state["kept"]["agent"]
        assert all(torch.equal(torch.from_numpy(agent[name]), weights[name]) for name in agent)


def test_what_can_not_be_resumed_is_refused(train: Any, first: Any, tmp_path: Path) -> None:
    path = str(first.checkpoints[-1])
    other = ["--env-id", "Pendulum-v1", "--total-timesteps", "2048"]
    refused = train("ppo_continuous_action", other, into="a", expect=2, CLEANRL_RESUME_PATH=path)
    assert "is of ppo, not of ppo_continuous_action" in refused.process.stderr
    refused = train("ppo", ["--env-id", "Acrobot-v1"], into="b", expect=2, CLEANRL_RESUME_PATH=path)
    assert "was made on CartPole-v1" in refused.process.stderr
    refused = train("ppo", [], into="c", expect=2, CLEANRL_RESUME_PATH=str(tmp_path / "none"))
    assert "does not exist" in refused.process.stderr
    (tmp_path / "noise").write_bytes(os.urandom(100))
    refused = train("ppo", [], into="d", expect=2, CLEANRL_RESUME_PATH=str(tmp_path / "noise"))
    assert "not a model file" in refused.process.stderr
