"""A real run with real W&B before a stand-in server: what arrives there, what stays, and that the key is in none of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KEY = "0123456789abcdef0123456789abcdef01234567"
EXTRAS = {
    "track_wandb": True,
    "wandb_project_name": "cleanRL",
    "wandb_entity": "team",
    "wandb_group": "sweep-1",
    "wandb_tags": ["baseline", "cpu"],
    "algo_params": {"num_envs": 1, "num_steps": 32},
}
RUN_ID = "01JD0000000000000000000000"


def train(folder: Path, environ: dict[str, str], record: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", "ppo", "--env-id", "CartPole-v1"]
    command += ["--total-timesteps", "256", "--run-id", RUN_ID, "--run-dir", str(folder)]
    command += ["--record-path", str(record), "--extras", json.dumps(EXTRAS)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=240)


def start(folder: Path, environ: dict[str, str], record: Path, steps: int, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", "ppo", "--env-id", "CartPole-v1"]
    command += ["--total-timesteps", str(steps), "--run-id", RUN_ID, "--run-dir", str(folder)]
    command += ["--record-path", str(record), "--extras", json.dumps(EXTRAS), *more]
    often = {"CLEANRL_CHECKPOINT_EVERY_STEPS": "2000"}
    silent: Any = subprocess.DEVNULL
    return subprocess.Popen(command, env={**environ, **often}, stdout=silent, stderr=silent, start_new_session=True)


def newest_step(folder: Path) -> int:
    written = [json.loads(path.read_text()) for path in folder.glob("checkpoints/[!.]*/manifest.json")]
    return max((int(each["step"]) for each in written), default=0)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """As when a container is killed: supervisor, training and W&B's own process in one blow."""
    tree = [process.pid]
    for pid in tree:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            tree += map(int, children.read_text().split())
    for pid in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def files_with(text: str, *folders: Path) -> list[str]:
    return [
        str(path)
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and text.encode() in path.read_bytes()
    ]


def manifest(folder: Path) -> Any:
    return json.loads((folder / "analytics.json").read_text())["artifacts"]["wandb"]


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_an_online_run_arrives_with_its_names_and_tells_its_address(
    wandb_server: Any, environ: dict[str, str], tmp_path: Path
) -> None:
    folder, record = tmp_path / "run", tmp_path / "record"
    ended = train(folder, {**environ, "WANDB_BASE_URL": wandb_server.url, "WANDB_API_KEY": KEY}, record)
    assert ended.returncode == 0, ended.stderr
    told = wandb_server.runs[RUN_ID]
    assert (told["project"], told["entity"], told["groupName"]) == ("cleanRL", "team", "sweep-1")
    assert told["tags"] == ["baseline", "cpu"]
    assert any("charts/episodic_return" in line for line in wandb_server.history)
    url = f"{wandb_server.url}/team/cleanRL/runs/{RUN_ID}"
    assert manifest(folder)["url"] == url
    assert json.loads(record.read_text())["wandbUrl"] == url
    assert wandb_server.authorized > 0, "the key reached the server, in a header"
    assert KEY not in ended.stdout + ended.stderr
    assert files_with(KEY, tmp_path) == []
    assert not any(KEY.encode() in body for body in wandb_server.bodies)


def test_without_a_network_a_run_stays_offline_and_is_uploaded_when_there_is_one(
    wandb_server: Any, environ: dict[str, str], tmp_path: Path
) -> None:
    folder, record = tmp_path / "run", tmp_path / "record"
    cut_off = {**environ, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY}
    ended = train(folder, cut_off, record)
    assert ended.returncode == 0, ended.stderr
    notes = [event["payload"]["message"] for event in events(folder) if event["event"] == "note"]
    assert any("kept offline" in note and "uploaded at the end" in note for note in notes), notes
    assert any(note.startswith("W&B keeps the run offline") for note in notes), "the end tried, and says why not"
    told = manifest(folder)
    assert (told["mode"], told["url"]) == ("offline", None)
    assert told["sync_command"].startswith("wandb sync ")

    later = {**environ, "WANDB_BASE_URL": wandb_server.url, "WANDB_API_KEY": KEY}
    command = [sys.executable, "-m", "cleanrl_worker.wandb_sync", str(folder)]
    synced = subprocess.run(command, env=later, capture_output=True, text=True, check=False, timeout=120)
    assert synced.returncode == 0, synced.stdout + synced.stderr
    assert f"{wandb_server.url}/team/cleanRL/runs/{RUN_ID}" in synced.stdout
    assert wandb_server.runs[RUN_ID]["groupName"] == "sweep-1"
    assert any("charts/episodic_return" in line for line in wandb_server.history)
    again = subprocess.run(command, env=later, capture_output=True, text=True, check=False, timeout=120)
    assert again.stdout.startswith("W&B has nothing to upload.")
    assert KEY not in ended.stdout + ended.stderr + synced.stdout + synced.stderr
    assert files_with(KEY, tmp_path) == []


def test_an_attempt_that_died_offline_is_uploaded_before_the_next_goes_online(
    wandb_server: Any, environ: dict[str, str], tmp_path: Path
) -> None:
    folder, record = tmp_path / "run", tmp_path / "record"
    cut_off = {**environ, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY}
    first = start(folder, cut_off, record, 10_000_000)
    parts = folder / "wandb" / "wandb"
    deadline = time.monotonic() + 240
    torn: list[Path] = []
    try:
        while not torn or not newest_step(folder):
            assert time.monotonic() < deadline, "no checkpoint, or nothing of W&B's on disk"
            assert first.poll() is None, (folder / "events.jsonl").read_text()[-2000:]
            time.sleep(0.2)
            torn = [path for path in parts.glob("offline-run-*/*.wandb") if path.stat().st_size > 40_000]
    finally:
        kill_all(first)
    held = torn[0].stat().st_size
    empty = parts / "offline-run-20200101_000000-x"
    empty.mkdir()
    (empty / "run-x.wandb").write_bytes(torn[0].read_bytes()[:7])  # of an attempt that died before it said anything

    online = {**environ, "WANDB_BASE_URL": wandb_server.url, "WANDB_API_KEY": KEY}
    checkpoint = newest_step(folder)
    second = start(folder, online, record, checkpoint + 2048, "--continue")
    assert second.wait(240) == 0, (folder / "events.jsonl").read_text()[-2000:]
    notes = [event["payload"]["message"] for event in events(folder) if event["event"] == "note"]
    assert any(note.startswith("Earlier attempts were kept offline. The run was uploaded") for note in notes), notes
    assert torn[0].stat().st_size == held
    assert list(wandb_server.lines) == [RUN_ID], "both attempts are one run there"
    steps = [line["global_step"] for line in wandb_server.history if "global_step" in line]
    assert max(steps[:20]) < checkpoint, "the first attempt's curve comes first, and was not written over"
    assert max(steps) > checkpoint
    assert manifest(folder)["sync_command"].count("wandb sync") == 1, "the empty part is all that is left"
    again = [sys.executable, "-m", "cleanrl_worker.wandb_sync", str(folder)]
    told = subprocess.run(again, env=online, capture_output=True, text=True, check=False, timeout=120)
    assert told.stdout.startswith("W&B has nothing to upload.")
    assert files_with(KEY, tmp_path) == []


def test_a_key_that_is_not_taken_costs_no_run(wandb_server: Any, environ: dict[str, str], tmp_path: Path) -> None:
    folder, wrong = tmp_path / "run", "not-a-key-of-theirs"
    ended = train(folder, {**environ, "WANDB_BASE_URL": wandb_server.url, "WANDB_API_KEY": wrong}, tmp_path / "record")
    assert ended.returncode == 0, ended.stderr
    notes = [event["payload"]["message"] for event in events(folder) if event["event"] == "note"]
    assert any("W&B does not take the run" in note for note in notes), notes
    assert manifest(folder)["runs"][0]["offline"]
    assert files_with(wrong, folder) == []
