"""However fast a machine is, the demo ends with the whole learning curve, and never fails for want of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import demo
import pytest

from cleanrl_worker.training.writer import EventWriter


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> demo.Tools:
    """The cluster's tools, whose `kubectl exec` runs here, on a claim that is a folder."""

    def kubectl(*arguments: str) -> str:
        command = arguments[arguments.index("--") + 1 :]
        assert command[0] == "python"
        here = [sys.executable, *(part.replace("/run-data", str(tmp_path)) for part in command[1:])]
        return subprocess.run(here, capture_output=True, text=True, check=True).stdout

    made = demo.Tools({}, None, {"kubectl": Path("kubectl"), "helm": Path("helm")})
    monkeypatch.setattr(made, "kubectl", kubectl)
    return made


def test_every_episode_of_every_attempt_is_in_the_curve(tools: demo.Tools, tmp_path: Path) -> None:
    step, written = 0, {}
    for returns in ([20.0] * 40, [100.0] * 20 + [200.0] * 20):
        writer = EventWriter(tmp_path / "tensorboard" / "run")
        writer.rewind(written, step)
        for value in returns:
            step += 10
            writer.scalars({"charts/episodic_return": value, "charts/SPS": 1.0}, step)
        written = writer.position()
        writer.close()
    assert demo.learned(tools) == f"{'▁' * 20}{'▅' * 10}{'█' * 10} 200 at the end"


def test_a_run_without_an_ended_episode_says_so(tools: demo.Tools, tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "tensorboard" / "run")
    writer.scalars({"charts/SPS": 1.0}, 1)
    writer.close()
    assert demo.learned(tools) == "no episode ended"


def test_who_may_not_look_into_pods_is_told_and_sees_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> str:
        raise demo.Refused("kubectl exec: forbidden")

    tools = demo.Tools({}, None, {"kubectl": Path("kubectl"), "helm": Path("helm")})
    monkeypatch.setattr(tools, "kubectl", refuse)
    assert demo.learned(tools) == "not shown, kubectl exec: forbidden"


def test_without_a_cluster_the_curve_is_whole_too_and_down_removes_what_was_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker reports a few figures a run; its event files have every episode."""
    local = demo.demo_local
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(demo, "CLUSTER", "demo-of-a-test")
    monkeypatch.setattr(local, "PROJECT", tmp_path)
    monkeypatch.setattr(local, "RUNS", tmp_path / "var" / "demo")
    monkeypatch.setattr(local, "STEPS", 4096)
    monkeypatch.setenv("PYTHONPATH", str(demo.PROJECT))
    assert local.run() == 0
    told = next(line for line in capsys.readouterr().out.splitlines() if "at the end" in line)
    assert sum(told.count(bar) for bar in local.BARS) > 20
    assert list((tmp_path / "var" / "demo").iterdir())
    assert demo.take_down() == 0
    assert not (tmp_path / "var" / "demo").exists()


@pytest.mark.parametrize(
    ("answers", "cause"),
    [
        ({"geteuid": 1000}, "A node needs root (namespaces, mounts, control groups), so this"),
        (
            {"unshare": "unshare: unshare failed: Operation not permitted"},
            "this machine refuses them (unshare: unshare failed: Operation not permitted), so this",
        ),
        ({"writable": False}, "A node needs writable control groups, so this"),
    ],
)
def test_why_there_is_no_cluster_is_a_whole_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answers: dict[str, Any], cause: str
) -> None:
    refusal = str(answers.get("unshare", ""))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: answers.get("geteuid", 0))
    monkeypatch.setattr("devcluster.cgroups.writable", lambda: answers.get("writable", True))
    monkeypatch.setattr("subprocess.run", lambda *_, **__: subprocess.CompletedProcess([], bool(refusal), "", refusal))
    monkeypatch.setattr(demo.demo_local, "run", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    assert demo.main() == 0
    assert cause in capsys.readouterr().out


def test_ctrl_c_without_a_cluster_says_how_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no cluster in which anything would go on; and the worker is given the time to save."""
    local = demo.demo_local
    waits = []

    class Worker:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Worker:
            return self

        def __exit__(self, *_: object) -> None: ...
        def wait(self) -> int:
            waits.append(len(waits))
            if len(waits) == 1:
                raise KeyboardInterrupt
            return 130

    monkeypatch.setattr(local.subprocess, "Popen", Worker)
    monkeypatch.setattr(local, "PROJECT", tmp_path)
    monkeypatch.setattr(local, "RUNS", tmp_path / "var" / "demo")
    assert local.run() == 130
    assert len(waits) == 2
    told = capsys.readouterr().out
    assert ".venv/bin/cleanrl-worker --algo ppo" in told
    assert "--continue" in told
    assert "cluster goes on" not in told
