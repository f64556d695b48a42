"""A claim is a tenant's to write: every reader of it takes what it finds for what it is, and nothing for an order."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import HOSTILE_JSON, HOSTILE_NUMBERS, HOSTILE_TEXT, budget
from hypothesis import example, given
from hypothesis import strategies as st

from cleanrl_protocol.limits import LAST_NUMBER
from cleanrl_worker import analytics, bridge, sidecar
from cleanrl_worker.agents.loading import read_model
from cleanrl_worker.bridge import EventFiles
from cleanrl_worker.fastlane import segment
from cleanrl_worker.fastlane.exporter import Exporter, RunState
from cleanrl_worker.fastlane.ring import HEADER, MAGIC, SLOT, Geometry, Metrics, RingReader, RingWriter
from cleanrl_worker.runfolder import RunFolder, RunFolderError
from cleanrl_worker.telemetry import EventLog, read_events
from cleanrl_worker.tools.liveness import sign_of_life
from cleanrl_worker.training.checkpoints import BadCheckpoint, CheckpointStore, find, newest_valid
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.writer import masked_crc

SECRET = b'{"run_id": "of somebody else", "secret": "hunter2"}\n'
PATIENCE = 30.0


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """What `work` gives. A reader that waits for a pipe would wait for ever: that fails here instead of in the night."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append((work(), None))
        except Exception as error:  # noqa: BLE001 - handed to the caller
            found.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it waits for something that never comes"
    result, error = found[0]
    if error is not None:
        raise error
    return result


def make_run(folder: Path) -> Path:
    """A run's folder as a worker leaves it that was killed in the middle of training."""
    folder.mkdir(parents=True)
    log = EventLog(folder / "events.jsonl", folder.name, None)
    log.emit("run_started", attempt=1)
    log.emit("training_started", step=0)
    log.close()
    (folder / "config.json").write_text(json.dumps({"run_id": folder.name, "algo": "ppo", "env_id": "CartPole-v1"}))
    (folder / "tensorboard").mkdir()
    store = CheckpointStore(folder / "checkpoints")
    for step in (10, 20):
        store.save(
            step, {"w": np.full(8, step, np.float32)}, {"algo": "ppo", "env_id": "CartPole-v1"}, "test", wait=True
        )
    analytics.refresh_manifest(folder)
    return folder


def link_to_secret(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "secret.json")


def link_to_folder(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere, target_is_directory=True)


def loop(path: Path, _elsewhere: Path) -> None:
    path.symlink_to(path.name)


def pipe(path: Path, _elsewhere: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, _elsewhere: Path) -> None:
    path.mkdir()


def endless(path: Path, _elsewhere: Path) -> None:
    path.symlink_to("/dev/zero")


def nowhere(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "made-by-a-link")


TRAPS = [link_to_secret, link_to_folder, loop, pipe, folder, endless, nowhere]
PLACES = [
    "events.jsonl", "config.json", "analytics.json", ".lock", "tensorboard", "checkpoints", "logs",
    "checkpoints/step-000000000020/manifest.json", "checkpoints/step-000000000020/arrays.bin",
    "checkpoints/step-000000000020", "checkpoints/step-000000000099", "runs",
]  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_planted_in_a_run_leads_nobody_out_of_it(tmp_path: Path, place: str, trap: Callable[..., None]) -> None:
    """The sidecar, the next attempt and TensorBoard's namer meet it; other runs and the rest of the disk stay as they are."""
    runs, elsewhere, index = tmp_path / "runs", tmp_path / "elsewhere", tmp_path / "index"
    run, neighbour = make_run(runs / "01RUN"), make_run(runs / "01NEIGHBOUR")
    index.mkdir()
    elsewhere.mkdir()
    (elsewhere / "secret.json").write_bytes(SECRET)
    planted = run / place
    if planted.is_dir():
        shutil.rmtree(planted)
    planted.unlink(missing_ok=True)
    trap(planted, elsewhere)
    before = fingerprint(neighbour), fingerprint(elsewhere)

    def next_attempt() -> None:
        lock = RunFolder(run).take()
        try:
            RunFolder(run).prepare({"run_id": "01RUN"})
            RunFolder(run).history()
            log = EventLog(run / "events.jsonl", "01RUN", None)
            log.emit("run_started", attempt=2)
            log.close()
        finally:
            os.close(lock)

    def names() -> None:
        farm = tmp_path / "farm"
        farm.mkdir()
        sidecar.link_runs(runs, farm)
        for link in farm.iterdir():
            assert link.resolve().is_relative_to(runs.resolve())

    readers: list[tuple[Callable[[], Any], tuple[type[Exception], ...]]] = [
        (lambda: analytics.finalise(run), (OSError,)),
        (lambda: analytics.rebuild_index(runs, index), ()),
        (names, ()),
        (lambda: newest_valid(run / "checkpoints"), ()),
        (lambda: find(run), (BadCheckpoint,)),
        (lambda: EventFiles([run / "tensorboard"]).poll(), ()),
        (next_attempt, (OSError, RunFolderError)),
    ]
    for work, allowed in readers:
        try:
            within(PATIENCE, work)
        except allowed:
            continue
    assert (fingerprint(neighbour), fingerprint(elsewhere)) == before, "something outside of the run was changed"
    for written in (*run.glob("*.json"), *index.glob("*")):
        if written.is_file() and not written.is_symlink():
            assert b"hunter2" not in written.read_bytes(), "another's file was copied into the run"
    listed = json.loads((index / "index.json").read_text())["runs"]
    assert "01NEIGHBOUR" in [entry["path"] for entry in listed]
    assert "of somebody else" not in [entry["run_id"] for entry in listed]


def fingerprint(root: Path) -> dict[str, str]:
    """What a folder holds; the neighbour's own lock and index come and go."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
    }


LINES = st.one_of(
    st.binary(max_size=60),
    HOSTILE_JSON.map(lambda value: json.dumps(value, default=str).encode(errors="replace")),
    st.fixed_dictionaries(
        {"event": st.sampled_from(["run_started", "run_completed", "run_failed", "note"]) | HOSTILE_JSON},
        optional={"seq": st.integers(1, 9) | HOSTILE_NUMBERS, "timestamp": HOSTILE_JSON, "payload": HOSTILE_JSON},
    ).map(lambda value: json.dumps(value, default=str).encode(errors="replace")),
    st.just(b"[" * 100_000),
    st.just(b'{"event":"note","seq":1,"timestamp":' + b"9" * 5000 + b"}"),
)


@budget(100)
@example(lines=[b'{"event":"","seq":9223372036854775807}'], torn=b"")
@given(lines=st.lists(LINES, max_size=8), torn=st.binary(max_size=20))
def test_any_event_log_is_read_judged_and_continued(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], torn: bytes
) -> None:
    run = tmp_path_factory.mktemp("run")
    path = run / "events.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + torn)
    known = [event["seq"] for event in read_events(path)]
    history = RunFolder(run).history()
    assert history.starts >= 0
    assert 0 <= history.seconds < 2**40
    sign_of_life(run)
    analytics.finalise(run)
    analytics.rebuild_index(run.parent)
    log = EventLog(path, "r", None)
    following = min(max(known, default=0) + 1, LAST_NUMBER)
    assert log.emit("note")["seq"] == following
    log.close()
    assert [event["seq"] for event in read_events(path)] == [*known, following]


@budget(100)
@given(
    name=st.sampled_from(["config.json", "analytics.json"]),
    content=st.binary(max_size=60)
    | HOSTILE_JSON.map(lambda value: json.dumps(value, default=str).encode())
    | st.dictionaries(
        st.sampled_from(
            [
                "run_id",
                "algo",
                "times",
                "extras",
                "artifacts",
                "requirements",
                "reproducibility",
                "tensorboard_dir",
                "outcome",
            ]
        ),
        HOSTILE_JSON,
    ).map(lambda value: json.dumps(value, default=str).encode()),
)
def test_any_manifest_and_config_is_replaced_and_indexed(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes
) -> None:
    runs = tmp_path_factory.mktemp("runs")
    run = runs / "01RUN"
    run.mkdir()
    (run / name).write_bytes(content)
    analytics.rebuild_index(runs)
    analytics.refresh_manifest(run)
    index = json.loads(analytics.rebuild_index(runs).read_text(), parse_constant=pytest.fail)
    assert [entry["path"] for entry in index["runs"]] == ["01RUN"]


@budget(150)
@given(data=st.data())
def test_a_checkpoint_with_honest_digests_and_a_hostile_content_is_wrong_and_not_dangerous(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Who can write the files can write their digests too: past those, the content itself has to be harmless."""
    root = tmp_path_factory.mktemp("checkpoints")
    store = CheckpointStore(root)
    store.save(10, {"w": np.zeros(4, np.float32), "n": {"deep": [1, "x"]}}, {"algo": "ppo"}, "test", wait=True)
    store.save(20, {"w": np.zeros(4, np.float32)}, {"algo": "ppo"}, "test", wait=True)
    folder = root / "step-000000000020"
    node = st.fixed_dictionaries(
        {"$": st.sampled_from(["int", "dict", "tuple", "chunk", "array", "scalar", "bytes", "tensor", "class"])},
        optional={
            "dtype": st.sampled_from(["float32", "object", "O", "V8", "float64", "bool"]) | HOSTILE_JSON,
            "shape": st.lists(HOSTILE_NUMBERS, max_size=3) | HOSTILE_JSON,
            "at": HOSTILE_NUMBERS,
            "key": HOSTILE_TEXT,
            "hex": HOSTILE_TEXT,
            "pairs": HOSTILE_JSON,
            "items": HOSTILE_JSON,
        },
    )
    state = data.draw(HOSTILE_JSON | node | st.dictionaries(st.text(max_size=3), node, max_size=3))
    (folder / "state.json").write_text(json.dumps(state, default=str))
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256((folder / "state.json").read_bytes()).hexdigest()
    manifest["files"]["state.json"] = {"sha256": digest, "bytes": 1}
    manifest["chunks"] = data.draw(
        st.just({})
        | HOSTILE_JSON
        | st.dictionaries(HOSTILE_TEXT, st.dictionaries(st.sampled_from(["dtype", "shape"]), HOSTILE_JSON))
    )
    for key in data.draw(st.sets(st.sampled_from(["step", "meta", "version"]), max_size=1)):
        manifest[key] = data.draw(HOSTILE_JSON)
    (folder / "manifest.json").write_text(json.dumps(manifest, default=str))
    noted: list[str] = []
    loaded = newest_valid(root, noted.append)
    assert loaded is not None
    assert loaded.step == 10 or not noted, "what can't be used is passed over for the one before it"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pickle, "loads", lambda *_: pytest.fail("something was unpickled"))
        CheckpointStore(root).save(30, {"w": np.zeros(1)}, {}, "test", wait=True)
    assert (root / "step-000000000030").is_dir(), "what lies beside it does not stop the next one"


class _Attack:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_model_file_that_is_a_program_is_not_run(tmp_path: Path) -> None:
    import torch

    mark = tmp_path / "it ran"
    for name, save in {"pickle": lambda path: path.write_bytes(pickle.dumps(_Attack(mark))),
                       "torch": lambda path: torch.save({"model_weights": _Attack(mark)}, path)}.items():  # fmt: skip
        path = tmp_path / f"{name}.cleanrl_model"
        save(path)
        with pytest.raises(BadConfig, match="safely"):
            read_model(path)
        assert not mark.exists()


HEADERS = st.tuples(
    st.just(MAGIC) | st.binary(min_size=4, max_size=4),
    *[st.integers(0, 4) | st.integers(0, 2**32 - 1)] * 9,
    *[st.integers(0, 2**64 - 1)] * 2,
    *[st.floats()] * 3,
).map(lambda values: HEADER.pack(*values))
FITTING = st.builds(
    lambda capacity, payload, width, height, channels, head: HEADER.pack(
        MAGIC, 1, 0, capacity, SLOT.size + payload, payload, width, height, channels, 0, head, 0, 0.0, 0.0, 0.0
    ),
    st.integers(1, 9), st.integers(0, 60), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 2**64 - 1),
)  # fmt: skip


@budget(150)
@given(header=HEADERS | FITTING, slots=st.binary(max_size=200), cut=st.integers(0, 400))
def test_any_ring_gives_a_frame_or_none(
    tmp_path_factory: pytest.TempPathFactory, header: bytes, slots: bytes, cut: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "SHM_DIR", tmp_path_factory.mktemp("shm"))
        writer = RingWriter("r", Geometry(4, 4, 3, capacity=4))
        writer.publish(bytes(48), Metrics())
        path = segment.SHM_DIR / segment.ring_name("r")
        path.write_bytes((header + slots + path.read_bytes()[len(header) + len(slots) :])[:cut])
        reader = RingReader("r")
        frame = reader.latest_frame()
        assert frame is None or len(frame.data) <= path.stat().st_size
        reader.frames_published()
        reader.is_current()
        reader.close()
        writer.close()
        exporter = Exporter("r", "127.0.0.1", 0, RunState)
        try:
            exporter.frames.encoded("PNG")
        finally:
            exporter.close()


def test_a_ring_that_claims_millions_of_slots_costs_no_more_than_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "SHM_DIR", tmp_path)
    path = tmp_path / segment.ring_name("r")
    capacity = 2**27
    with path.open("wb") as file:
        file.write(HEADER.pack(MAGIC, 1, 0, capacity, SLOT.size, 0, 0, 0, 0, 0, capacity, 0, 0.0, 0.0, 0.0))
        file.truncate(HEADER.size + capacity * SLOT.size)  # sparse
    reader = RingReader("r")
    assert within(PATIENCE, reader.latest_frame) is None
    reader.close()


def framed(body: bytes) -> bytes:
    header = struct.pack("<Q", len(body))
    return header + struct.pack("<I", masked_crc(header)) + body + struct.pack("<I", masked_crc(body))


def field(number: int, kind: int, rest: bytes) -> bytes:
    return bytes([number << 3 | kind]) + (bytes([len(rest)]) if kind == 2 else b"") + rest


FIELDS = st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 2, 5]), st.binary(max_size=30))
BODIES = st.lists(FIELDS, max_size=5).map(lambda fields: b"".join(field(*each) for each in fields))


@budget(200)
@given(pieces=st.lists(st.binary(max_size=40) | BODIES.map(framed) | st.binary(max_size=60).map(framed), max_size=6))
def test_any_event_file_gives_figures_or_none(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("tensorboard")
    ticks = iter(range(0, 10_000, int(bridge.LOOK_SECONDS) + 1))
    files = EventFiles([folder], lambda: float(next(ticks)))
    with (folder / "events.out.tfevents.1.h").open("ab", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
            figures = files.poll()
            assert all(isinstance(value, float) and abs(value) < float("inf") for value in figures.values.values())
            assert figures.step is None or 0 <= figures.step < 2**63
