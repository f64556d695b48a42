"""TensorBoard itself reads what we write, and after a resume sees every step once."""

from __future__ import annotations

import math
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cleanrl_worker.training.writer import EventWriter, masked_crc


def read(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []


def test_the_checksum_is_crc32c() -> None:
    crc = 0xE3069283  # of "123456789", from RFC 3720
    assert masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars_and_the_table_of_hyperparameters(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    writer.table("hyperparameters", {"seed": 1, "env_id": "CartPole-v1"})
    for step in range(5):
        writer.scalars({"charts/a": step / 2, "losses/b": -step}, step * 1000)
    writer.close()
    assert read(tmp_path, "charts/a") == [(step * 1000, step / 2) for step in range(5)]
    assert read(tmp_path, "losses/b") == [(step * 1000, -step) for step in range(5)]
    events = EventAccumulator(str(tmp_path)).Reload()
    (text,) = events.Tensors("hyperparameters/text_summary")
    assert b"|seed|1|" in text.tensor_proto.string_val[0]
    assert events.SummaryMetadata("hyperparameters/text_summary").plugin_data.plugin_name == "text"


def test_what_no_single_float_holds_ends_no_run(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    for step, value in enumerate((1e300, -1e300, 1.0)):
        writer.scalars({"charts/a": value}, step)
    writer.close()
    assert read(tmp_path, "charts/a") == [(0, math.inf), (1, -math.inf), (2, 1.0)]


def test_a_run_that_wrote_nothing_leaves_no_file(tmp_path: Path) -> None:
    EventWriter(tmp_path / "none").close()
    assert not (tmp_path / "none").exists()


def test_after_a_rewind_each_step_is_there_once(tmp_path: Path) -> None:
    dead = EventWriter(tmp_path)
    for step in range(6):
        if step == 4:
            dead.scalars({"x": 4.0}, 4)  # logged before the checkpoint of step 4
            position = dead.position()
            dead.scalars({"y": 4.0}, 4)  # the same step, but after it
            continue
        dead.scalars({"x": float(step)}, step)
    dead.flush()
    with next(tmp_path.glob("events*")).open("ab") as file:
        file.write(b"torn")  # the process died while writing

    second = EventWriter(tmp_path)
    second.rewind(position, 4)
    second.scalars({"y": 40.0}, 4)
    second.scalars({"x": 50.0}, 5)
    later = second.position()
    second.scalars({"x": 60.0}, 6)
    second.close()
    assert read(tmp_path, "x") == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 50.0), (6, 60.0)]
    assert read(tmp_path, "y") == [(4, 40.0)]

    third = EventWriter(tmp_path)
    third.rewind(later, 5)
    third.scalars({"x": 61.0}, 6)
    third.close()
    assert [value for _, value in read(tmp_path, "x")] == [0.0, 1.0, 2.0, 3.0, 4.0, 50.0, 61.0]


def test_a_fresh_start_over_a_dead_attempt_leaves_nothing_of_it(tmp_path: Path) -> None:
    dead = EventWriter(tmp_path)
    dead.scalars({"x": 1.0}, 1)
    dead.close()
    writer = EventWriter(tmp_path)
    writer.rewind({}, 0)
    writer.scalars({"x": 2.0}, 1)
    writer.close()
    assert read(tmp_path, "x") == [(1, 2.0)]


def test_a_reader_that_was_watching_forgets_what_the_dead_attempt_wrote(tmp_path: Path) -> None:
    dead = EventWriter(tmp_path)
    dead.scalars({"x": 1.0}, 1)
    position = dead.position()
    dead.scalars({"x": 2.0}, 2)
    dead.close()
    watching = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in watching.Scalars("x")] == [1, 2]
    writer = EventWriter(tmp_path)
    writer.rewind(position, 1)
    writer.scalars({"x": 20.0}, 2)
    writer.close()
    assert [(event.step, event.value) for event in watching.Reload().Scalars("x")] == [(1, 1.0), (2, 20.0)]
