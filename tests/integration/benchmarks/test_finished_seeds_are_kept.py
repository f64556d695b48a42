"""A benchmark of hours keeps every finished seed in the repository: the next machine trains only what is missing."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scores(monkeypatch):
    """The command, with one case that takes seconds."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.chdir(BENCHMARKS.parents[1])
    import scores as command

    monkeypatch.setattr(command, "CASES", (command.Case("ppo", "CartPole-v1", 1024, 10.0),))
    return command


def call(command, monkeypatch, folder: Path, seeds: int, work: str) -> int:
    flags = ["--seeds", str(seeds), "--work", folder / work, "--records", folder / "records", "--out", folder / "out"]
    monkeypatch.setattr(sys, "argv", ["scores.py", *map(str, flags)])
    return command.main()


def test_a_seed_is_trained_once_whatever_becomes_of_the_work_folder(scores, monkeypatch, tmp_path):
    assert call(scores, monkeypatch, tmp_path, seeds=1, work="first machine") == 0
    first = (tmp_path / "records/scores/ppo-CartPole-v1-1.json").read_bytes()
    record = json.loads(first)
    assert record["seed"] == 1
    assert record["last"] > 10.0
    assert record["greedy"] > 5.0
    assert record["curve"]["steps"][-1] <= 1024
    assert record["curve"]["values"][-1] == pytest.approx(record["last"], abs=1e-3)  # the same mean of 100 episodes
    assert {"commit", "machine", "date"} <= set(record)

    assert call(scores, monkeypatch, tmp_path, seeds=2, work="second machine") == 0
    assert [path.name for path in (tmp_path / "second machine").iterdir()] == ["ppo-CartPole-v1-2"]
    assert (tmp_path / "records/scores/ppo-CartPole-v1-1.json").read_bytes() == first
    page = (tmp_path / "out/scores.md").read_text()
    assert f"1: {record['last']:.1f}, 2: " in page
    assert (tmp_path / "out/ppo-CartPole-v1.png").stat().st_size > 1000


def test_a_command_that_is_stopped_leaves_no_run_behind_but_its_checkpoint(tmp_path):
    flags = [
        "--only",
        "dqn:CartPole-v1",
        "--seeds",
        "1",
        "--work",
        tmp_path / "work",
        "--records",
        tmp_path,
        "--out",
        tmp_path,
    ]
    command = [sys.executable, str(BENCHMARKS / "scores.py"), *map(str, flags)]
    process = subprocess.Popen(command, cwd=BENCHMARKS.parents[1], stdout=subprocess.DEVNULL)
    run = tmp_path / "work/dqn-CartPole-v1-1"
    deadline = time.monotonic() + 120
    while not list(run.glob("tensorboard/*/events*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    children += [
        c for task in Path(f"/proc/{process.pid}/task").iterdir() for c in (task / "children").read_text().split()
    ]
    process.terminate()
    assert process.wait(90) == 128 + signal.SIGTERM
    assert children
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(run.glob("checkpoints/step-*/manifest.json")), (run / "log.txt").read_text()


def test_the_page_alone_needs_no_training(scores, monkeypatch, tmp_path):
    assert call(scores, monkeypatch, tmp_path, seeds=0, work="work") == 1
    assert "| ppo | CartPole-v1 | 1,024 | not run yet |" in (tmp_path / "out/scores.md").read_text()
    assert not (tmp_path / "work").exists()


def test_a_curve_is_thinned_to_its_ends_and_evenly_between(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from records import POINTS, thin, trailing_mean

    steps, values = thin(range(0, 10_000, 2), [float(n) for n in range(5_000)])
    assert (steps[0], steps[-1], values[-1], len(steps)) == (0, 9_998, 4999.0, POINTS)
    gaps = {after - before for before, after in itertools.pairwise(steps)}
    assert max(gaps) - min(gaps) <= 2
    assert thin([5, 9], [1.0, 2.0]) == ([5, 9], [1.0, 2.0])
    assert thin([], []) == ([], [])
    assert trailing_mean([1.0, 3.0, 5.0, 7.0], 2).tolist() == [1.0, 2.0, 4.0, 6.0]


def test_the_verdict_of_a_learning_curve_comes_from_its_kept_figures(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from learning import TEACHER, HalfOfTeacher, LastEpisodes, Tenths

    steps = list(range(1, 1001))

    def figures(target, values, **more):
        return json.loads(json.dumps(target.measure(lambda tag: more.get(tag, (steps, values)), 1000)))

    rising = figures(Tenths(1), [float(step % 7) + step / 100 for step in steps])
    assert Tenths(1).met(rising)
    assert not Tenths(-1).met(rising)
    assert not Tenths(1).met(figures(Tenths(1), [float(step % 7) for step in steps]))
    last = LastEpisodes(20, -17)
    assert last.met(figures(last, [-21.0] * 980 + [-16.9] * 20))
    assert not last.met(figures(last, [-16.0] * 980 + [-17.1] * 20))
    half = HalfOfTeacher(20, worst=-21)
    assert half.met(figures(half, [-9.9] * 1000, **{TEACHER: ([0], [1.0])}))
    assert not half.met(figures(half, [-10.1] * 1000, **{TEACHER: ([0], [1.0])}))
