"""Real processes: foreign readers on the machine's real shared memory, and writers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from cleanrl_worker.fastlane import metrics, segment
from cleanrl_worker.fastlane.publisher import Publisher
from cleanrl_worker.fastlane.ring import RingReader
from cleanrl_worker.fastlane.settings import FastLaneSettings

FOREIGN_READER = """
import struct, sys
from multiprocessing.shared_memory import SharedMemory
shm = SharedMemory(name=sys.argv[1])
header = struct.unpack_from("<4sIIIIIIIIIQQddd", shm.buf)
capacity, slot_size, head = header[3], header[4], header[10]
at = 80 + (head - 1) % capacity * slot_size
seq, length, _ = struct.unpack_from("<QII", shm.buf, at)
print(header[0].decode(), header[6], header[7], head, seq, set(shm.buf[at + 16 : at + 16 + length]), header[12:])
shm.close()
"""

WRITER = """
import pathlib, sys, time
import numpy as np
from cleanrl_worker.fastlane import segment
segment.SHM_DIR = pathlib.Path(sys.argv[1])
from cleanrl_worker.fastlane.publisher import Publisher
publisher = Publisher.from_env()
publisher.frame(np.zeros((8, 8, 3), np.uint8))
print("ready", flush=True)
time.sleep(60)
"""


def publisher(run_id: str) -> Publisher:
    return Publisher(FastLaneSettings(run_id, True, "single", 0, 1, 1, 0.0, 256))


def start_writer(run_id: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "CLEANRL_RUN_ID": run_id, "GYM_GUI_FASTLANE_ONLY": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(segment.SHM_DIR)], env=environ, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_foreign_reader_attaches_by_name_and_its_exit_does_not_end_the_show(run_id: str) -> None:
    ours = publisher(run_id)
    ours.step(1, 2.0)
    ours.frame(np.full((4, 6, 3), 5, np.uint8))
    for number in (1, 2):
        answer = subprocess.run(
            [sys.executable, "-c", FOREIGN_READER, segment.ring_name(run_id)],
            capture_output=True,
            text=True,
            check=True,
        )
        # On Python before 3.13 that process has unlinked the segment by exiting; the next frame makes it anew.
        assert answer.stdout.startswith("FLAN 6 4 "), answer.stderr
        assert " {5} (2.0, 0.0, " in answer.stdout
        ours.frame(np.full((4, 6, 3), 5, np.uint8))
        found = RingReader(run_id).latest_frame()
        assert found is not None, number
    ours.close()


def test_our_own_reader_leaves_the_segment_alone(run_id: str) -> None:
    ours = publisher(run_id)
    ours.frame(np.zeros((4, 4, 3), np.uint8))
    program = (
        f"from cleanrl_worker.fastlane.ring import RingReader; print(RingReader({run_id!r}).latest_frame().number)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "1\n"
    assert (segment.SHM_DIR / segment.ring_name(run_id)).exists()
    ours.close()


def test_what_a_killed_writer_left_is_swept_and_a_living_one_is_not(run_id: str, shm: Path) -> None:
    writer = start_writer(run_id)
    names = [segment.ring_name(run_id), segment.metrics_name(run_id)]
    assert segment.unlink_stale() == []
    assert metrics.read(run_id) is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert segment.unlink_stale() == names
    assert list(shm.iterdir()) == []


def test_the_next_attempt_takes_over_the_ring_of_a_killed_one(run_id: str, shm: Path) -> None:
    writer = start_writer(run_id)
    reader = RingReader(run_id)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    ours = publisher(run_id)
    ours.frame(np.full((8, 8, 3), 3, np.uint8))
    found = reader.latest_frame()
    assert found is not None
    assert (found.number, found.data[0]) == (2, 3)
    ours.close()


def test_reading_while_another_process_writes_never_gives_a_torn_frame(run_id: str, shm: Path) -> None:
    program = """
import numpy as np, pathlib, sys
from cleanrl_worker.fastlane import segment
segment.SHM_DIR = pathlib.Path(sys.argv[1])
from cleanrl_worker.fastlane.publisher import Publisher
publisher = Publisher.from_env()
for number in range(1, 3001):
    publisher.frame(np.full((64, 64, 3), number % 251, np.uint8))
"""
    environ = {**os.environ, "CLEANRL_RUN_ID": run_id, "GYM_GUI_FASTLANE_ONLY": "1"}
    writer = subprocess.Popen([sys.executable, "-c", program, str(shm)], env=environ)
    seen = 0
    while writer.poll() is None:
        try:
            frame = RingReader(run_id).latest_frame()
        except FileNotFoundError:
            continue
        if frame is not None:
            seen += 1
            assert set(frame.data) == {frame.number % 251}
    assert writer.returncode == 0
    assert seen > 0
