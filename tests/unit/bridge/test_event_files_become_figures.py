"""The metric bridge follows event files of strangers: whole records count, damage and malice cost nothing."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from cleanrl_worker import bridge
from cleanrl_worker.bridge import EventFiles, parse_event
from cleanrl_worker.training.writer import EventWriter, masked_crc


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += bridge.LOOK_SECONDS
        return self.now


def record(body: bytes) -> bytes:
    header = struct.pack("<Q", len(body))
    return header + struct.pack("<I", masked_crc(header)) + body + struct.pack("<I", masked_crc(body))


def event(tag: str, value: float, step: int, moment: float = 0.0) -> bytes:
    entry = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(entry)]) + entry
    return b"\x09" + struct.pack("<d", moment) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary


def put(folder: Path, data: bytes, name: str = "events.out.tfevents.1.host") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with path.open("ab") as file:
        file.write(data)
    return path


def test_our_own_writer_is_read(tmp_path: Path) -> None:
    files = EventFiles([tmp_path], Clock())
    writer = EventWriter(tmp_path / "run")
    writer.table("hyperparameters", {"seed": 1})
    writer.scalars({"charts/episodic_return": 10.0, "charts/SPS": 250.0}, 100)
    writer.scalars({"charts/episodic_return": 30.0, "losses/value_loss": 0.5}, 200)
    writer.close()
    figures = files.poll()
    assert figures.values == {"charts/episodic_return": 30.0, "charts/SPS": 250.0, "losses/value_loss": 0.5}
    assert (figures.step, figures.steps_per_second, figures.episodes) == (200, 250.0, 2)
    assert figures.rolling_return == pytest.approx(11.0)


def test_the_usual_writers_are_read(tmp_path: Path) -> None:
    """torch's SummaryWriter, which upstream scripts use, in both of its ways to store a scalar."""
    from torch.utils.tensorboard import SummaryWriter

    files = EventFiles([tmp_path], Clock())
    with SummaryWriter(str(tmp_path / "CartPole-v1__ppo__1__1")) as writer:
        writer.add_text("hyperparameters", "|a|b|")
        writer.add_scalar("charts/episodic_return", 42.0, 7)
        writer.add_scalar("losses/new_style", 2.5, 8, new_style=True)
    figures = files.poll()
    assert figures.values == {"charts/episodic_return": 42.0, "losses/new_style": 2.5}
    assert figures.step == 8


def test_growth_is_followed_record_by_record(tmp_path: Path) -> None:
    files = EventFiles([tmp_path], Clock())
    whole = record(event("a", 1.0, 1)) + record(event("a", 2.0, 2))
    seen = []
    for at in range(len(whole)):  # however the bytes arrive
        put(tmp_path, whole[at : at + 1])
        seen.append(files.poll().values.get("a"))
    assert seen.count(None) == len(whole) // 2 - 1
    assert seen[-1] == 2.0
    assert seen == sorted(seen, key=lambda value: value or 0.0)


def test_what_an_earlier_start_left_is_not_this_runs_progress(tmp_path: Path) -> None:
    path = put(tmp_path, record(event("charts/episodic_return", 99.0, 90)))
    files = EventFiles([tmp_path], Clock())
    assert files.poll().values == {}
    put(tmp_path, record(event("a", 1.0, 3)), "events.out.tfevents.2.host")
    assert files.poll().step == 3
    put(tmp_path, record(event("a", 1.0, 80)), path.name)
    assert files.poll().step == 3


def test_a_file_that_is_cut_back_is_followed_from_there(tmp_path: Path) -> None:
    files = EventFiles([tmp_path], Clock())
    path = put(tmp_path, record(event("a", 1.0, 1)) + record(event("a", 2.0, 2)))
    assert files.poll().step == 2
    os.truncate(path, len(record(event("a", 1.0, 1))))
    assert files.poll().step == 2
    put(tmp_path, record(event("a", 3.0, 2)))
    assert files.poll().values == {"a": 3.0}


def test_a_rate_is_made_of_steps_where_the_script_names_none(tmp_path: Path) -> None:
    files = EventFiles([tmp_path], Clock())
    put(tmp_path, record(event("a", 1.0, 10, moment=100.0)) + record(event("a", 1.0, 60, moment=105.0)))
    assert files.poll().steps_per_second == 10.0


def test_damage_ends_the_reading_of_that_file_only(tmp_path: Path) -> None:
    files = EventFiles([tmp_path], Clock())
    put(tmp_path / "bad", record(event("a", 1.0, 1)) + b"garbage" * 10 + record(event("a", 9.0, 9)))
    put(tmp_path / "good", record(event("b", 2.0, 2)))
    for _ in range(3):
        figures = files.poll()
    assert figures.values == {"a": 1.0, "b": 2.0}
    put(tmp_path / "good", record(event("b", 3.0, 3)))
    assert files.poll().values["b"] == 3.0


def test_random_bytes_in_well_formed_records_do_no_harm(tmp_path: Path) -> None:
    files = EventFiles([tmp_path], Clock())
    noise = random.Random(1)
    for _ in range(300):
        put(tmp_path, record(noise.randbytes(noise.randrange(60))))
        body = bytearray(event("a", 1.0, 1))
        body[noise.randrange(len(body))] = noise.randrange(256)
        put(tmp_path, record(bytes(body)))
    put(tmp_path, record(event("last", 7.0, 7)))
    assert files.poll().values["last"] == 7.0


def test_a_record_that_claims_to_be_huge_is_waited_for_and_never_read(tmp_path: Path) -> None:
    files = EventFiles([tmp_path], Clock())
    header = struct.pack("<Q", 2**50)
    path = put(tmp_path, record(event("a", 1.0, 1)) + header + struct.pack("<I", masked_crc(header)) + b"x" * 5000)
    assert files.poll().values == {"a": 1.0}
    opened = []
    real = os.pread

    def counting(*args: int) -> bytes:
        opened.append(args)
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", counting)
        for _ in range(5):
            files.poll()
    assert opened == [], f"{path} was read again for nothing"


def test_large_records_are_passed_over_and_what_follows_counts(tmp_path: Path) -> None:
    files = EventFiles([tmp_path], Clock())
    put(tmp_path, record(b"\x2a" * (bridge.MAX_POLL_BYTES + 5)) + record(event("after", 4.0, 4)))
    for _ in range(3):
        figures = files.poll()
    assert figures.values == {"after": 4.0}


def test_one_poll_reads_no_more_than_its_share_and_the_rest_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "MAX_POLL_BYTES", 1000)
    files = EventFiles([tmp_path], Clock())
    put(tmp_path, b"".join(record(event("a", float(number), number)) for number in range(1, 101)))
    steps = [files.poll().step for _ in range(20)]
    assert 0 < (steps[0] or 0) < 100
    assert steps[-1] == 100


def test_the_last_poll_finds_new_files_and_reads_them_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that is over within seconds, and a writer that wrote when it was closed."""
    monkeypatch.setattr(bridge, "MAX_POLL_BYTES", 200)
    files = EventFiles([tmp_path], lambda: 1.0)
    assert files.poll().step is None
    put(tmp_path, b"".join(record(event("charts/episodic_return", step, step)) for step in range(1, 41)))
    assert files.poll().step is None, "it is not time to look for files yet"
    figures = files.poll(last=True)
    assert (figures.step, figures.episodes, figures.values) == (40, 40, {"charts/episodic_return": 40.0})


def test_links_fifos_and_crowds_are_left_alone(tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere"
    put(secret, record(event("secret", 1.0, 1)))
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "events.out.tfevents.9.link").symlink_to(secret / "events.out.tfevents.1.host")
    (folder / "linked").symlink_to(secret)
    os.mkfifo(folder / "events.out.tfevents.8.fifo")
    for number in range(bridge.MAX_FILES + 20):
        put(folder, record(event(f"t{number}", 1.0, 1)), f"events.out.tfevents.7.{number:03}")
    files = EventFiles([folder], Clock())
    for number in range(bridge.MAX_FILES + 20):
        put(folder / "new", record(event(f"n{number}", 1.0, 1)), f"events.out.tfevents.{number:03}")
    figures = files.poll()
    assert "secret" not in figures.values
    assert len(figures.values) == bridge.MAX_FILES


def test_tags_are_bounded(tmp_path: Path) -> None:
    files = EventFiles([tmp_path], Clock())
    put(tmp_path, b"".join(record(event(f"tag{number}", 1.0, 1)) for number in range(300)))
    put(
        tmp_path,
        record(event("bad\n", 1.0, 1)) + record(event("nan", float("nan"), 1)) + record(event("x" * 90, 1.0, 1)),
    )
    assert len(files.poll().values) == bridge.MAX_SCALARS


def test_a_message_that_is_no_event_is_an_error() -> None:
    for body in (b"\xff" * 20, b"\x09abc", b"\x2a\x7f", b"\x0b", b"\x09" + struct.pack("<d", float("nan"))):
        with pytest.raises((ValueError, IndexError, struct.error)):
            parse_event(body)
