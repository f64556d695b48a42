"""The judges of chaos and soak: they see what was lost, and nothing where nothing was."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from devcluster.faultproxy.rules import Request, Rule

DAY = "2026-01-01T00:00:"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def told(*events: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"event": name, "payload": {"step": step}, "seq": number} for number, (name, step) in enumerate(events, 1)]


def test_a_start_from_further_back_than_one_interval_is_seen(load: Any) -> None:
    chaos_real = load("chaos_real")
    saved, started = "checkpoint_saved", "training_started"
    fine = told((started, 0), (saved, 5000), (saved, 10_000), (started, 10_000), (started, 5000))
    assert list(chaos_real.steps_back(fine)) == []
    assert len(list(chaos_real.steps_back(told((started, 0), (saved, 15_000), (started, 0))))) == 1


def story(load: Any, fate: str) -> Any:
    made = load("chaos").Story("ns", "run", random.Random(1))
    made.fate, made.expected = fate, load("chaos").OUTCOMES.get(fate, "completed")
    made.log = told(("run_started", 0), ("checkpoint_saved", 250), ("run_completed", 0))
    return made


def judged(load: Any, fate: str, **status: Any) -> list[str]:
    good = {
        "fsmState": "TERM", "outcome": "completed", "attempt": 1, "session": {"lastEvent": 3}, "checkpoint": {"step": 250},
        "transitions": [{"to": "INIT", "at": f"{DAY}05Z"}, {"to": "TERM", "at": f"{DAY}05.5Z"}],
    }  # fmt: skip

    class Stage:
        stories = {("ns", "run"): story(load, fate)}  # noqa: RUF012 - a stand-in

    run = {"metadata": {"namespace": "ns", "name": "run"}, "status": {**good, **status}}
    return [promise for promise, broken in load("chaos").wrong_ends(Stage, [run]).items() if broken]


@pytest.mark.parametrize(
    ("fate", "status", "broken"),
    [
        ("completes", {}, []),
        ("completes", {"fsmState": "EXEC"}, ["outcome"]),
        ("completes", {"outcome": "failed"}, ["outcome"]),
        ("is canceled", {"outcome": "canceled"}, []),
        ("is canceled", {}, ["outcome"]),
        ("completes", {"attempt": 2}, ["attempts"]),
        ("loses its pod", {"attempt": 2}, []),
        ("completes", {"session": {"lastEvent": 2}}, ["events"]),
        ("completes", {"checkpoint": {"step": -1}}, ["checkpoint"]),
        (
            "completes",
            {"transitions": [{"to": "INIT", "at": f"{DAY}05.5Z"}, {"to": "TERM", "at": f"{DAY}05Z"}]},
            ["time"],
        ),
    ],
)
def test_each_broken_promise_is_named(load: Any, fate: str, status: dict[str, Any], broken: list[str]) -> None:
    assert judged(load, fate, **status) == broken


def test_a_run_that_vanished_is_lost(load: Any) -> None:
    class Stage:
        stories = {("ns", "run"): story(load, "completes")}  # noqa: RUF012 - a stand-in

    assert load("chaos").wrong_ends(Stage, [])["outcome"] == ["ns/run: is not there any more"]


def real_run(**status: Any) -> dict[str, Any]:
    good = {"fsmState": "TERM", "outcome": "completed", "attempt": 1, "transitions": []}
    return {"metadata": {"name": "run"}, "status": {**good, **status}}


def cast_of(load: Any, fate: str, log: list[dict[str, Any]] | None, *, befallen: bool = True) -> Any:
    cast = load("chaos_real").Cast(None, 0, random.Random(1))
    cast.fates, cast.befallen = {"run": fate}, {"run"} if befallen else set()
    cast.logs = {} if log is None else {"run": log}
    return cast


TRAINED = told(("training_started", 0), ("checkpoint_saved", 5000), ("run_completed", 0))


@pytest.mark.parametrize(
    ("fate", "befallen", "status", "log", "broken"),
    [
        ("completes", False, {}, TRAINED, []),
        ("completes", False, {"fsmState": "EXEC", "outcome": None}, TRAINED, ["outcome"]),
        ("completes", False, {"outcome": "failed"}, TRAINED, ["outcome"]),
        ("completes", False, {"attempt": 2}, TRAINED, ["attempts"]),
        ("completes", False, {}, None, ["events"]),
        ("completes", False, {}, [TRAINED[0], TRAINED[2]], ["events"]),
        ("completes", False, {}, TRAINED[:2], ["events"]),
        ("loses its pod", True, {"attempt": 2}, TRAINED, []),
        ("loses its claim", True, {"outcome": "failed"}, None, []),
        ("loses its claim", True, {}, None, ["outcome"]),
        ("loses its claim", False, {"outcome": "failed"}, None, ["outcome"]),
        ("has a full disk", False, {"outcome": "failed"}, None, []),
        ("has a full disk", False, {}, None, ["outcome"]),
        ("is canceled", True, {"outcome": "canceled"}, TRAINED[:2], []),
        ("is canceled", False, {"outcome": "canceled"}, TRAINED[:2], ["outcome"]),
        (
            "loses its pod", True, {"attempt": 2},
            told(("training_started", 0), ("checkpoint_saved", 15_000), ("training_started", 0), ("run_completed", 0)),
            ["checkpoint"],
        ),
    ],
)  # fmt: skip
def test_each_promise_broken_on_real_pods_is_named(
    load: Any, fate: str, befallen: bool, status: dict[str, Any], log: list[dict[str, Any]] | None, broken: list[str]
) -> None:
    cast = cast_of(load, fate, log, befallen=befallen)
    assert [promise for promise, lost in cast.wrong([real_run(**status)]).items() if lost] == broken


def test_a_real_run_that_vanished_is_lost(load: Any) -> None:
    assert cast_of(load, "completes", TRAINED).wrong([])["outcome"] == ["run: is not there any more"]


def test_a_fate_that_found_nothing_to_strike_has_not_befallen(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run that nothing happened to would be counted as one that survived it."""
    chaos_real = load("chaos_real")
    cast = cast_of(load, "has its training killed", TRAINED, befallen=False)
    monkeypatch.setattr(chaos_real, "processes_of", lambda *_: [])
    cast.befall(real_run(fsmState="EXEC", progress={"step": 1}, podUID="uid", podName="pod"))
    assert cast.too_late() == ["run"]


def test_what_a_worker_did_before_its_fate_came_stands(load: Any) -> None:
    cast = cast_of(load, "loses its claim", None)
    cast.ended_first = {"run"}
    assert not any(cast.wrong([real_run()]).values())
    assert cast.wrong([real_run(outcome="canceled")])["outcome"]
    assert cast.too_late() == ["run"]


def test_a_pod_that_was_made_twice_is_seen(load: Any) -> None:
    def made(namespace: str, name: str, code: int = 201) -> dict[str, Any]:
        thing = {"resource": "pods", "namespace": namespace, "name": name}
        return {"verb": "create", "objectRef": thing, "responseStatus": {"code": code}}

    class Audit:
        def entries(self) -> list[dict[str, Any]]:
            pods = [made("chaos-1", "a"), made("chaos-1", "b"), made("chaos-2", "a"), made("chaos-1", "b", 409)]
            return [*pods, made("chaos-1", "a"), made("elsewhere", "c"), made("elsewhere", "c")]

    assert load("chaos_real").doubled(Audit(), "chaos-") == ["chaos-1/a: created 2 times"]


def test_each_part_of_a_storm_meets_calls_that_the_operator_makes(load: Any) -> None:
    """A rule that no call matches is a fault that is counted and never made."""
    api = "/apis/mosaic.dev/v1alpha1"
    calls = [
        Request("GET", f"{api}/cleanrlruns", "watch"),
        Request("POST", "/api/v1/namespaces/chaos-1/pods", "create"),
        Request("PATCH", f"{api}/namespaces/chaos-1/cleanrlruns/run/status", "patch"),
    ]
    for rule in load("chaos").STORM:
        assert any(Rule.parse(rule).matches(call) for call in calls), rule


def test_who_can_not_have_real_pods_is_told_before_the_pretended_ones_ran(
    load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chaos = load("chaos")
    monkeypatch.setattr(chaos.machine, "why_no_node", lambda: "A node needs root (mounts): be root.")
    monkeypatch.setattr(chaos, "pretended", lambda _: pytest.fail("it began"))
    monkeypatch.setattr("sys.argv", ["chaos.py"])
    with pytest.raises(SystemExit):
        chaos.main()
    assert (
        "A node needs root (mounts): run it where there is one, or leave the real pods out (--real 0)"
        in capsys.readouterr().err
    )


def test_without_the_library_that_sets_clocks_wrong_nothing_is_pretended(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The loader only warns of a library that is not there: the operator would keep the right time."""
    lab = load("operator_lab")
    monkeypatch.setattr(lab, "FAKETIME", tmp_path / "libfaketimeMT.so.1")
    with pytest.raises(SystemExit, match="install Debian's package libfaketime"):
        lab.own_clock("+90")
    lab.FAKETIME.touch()
    assert lab.own_clock("+90")["FAKETIME"] == "+90"


def test_the_operator_is_started_again_with_the_wrong_clock_and_then_with_the_right_one(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts the moment it was killed: what it is to see has to be there by then."""
    chaos = load("chaos")
    seen = []

    class Operator:
        environment: dict[str, str] = {"HOME": "/"}  # noqa: RUF012 - a stand-in
        process = None

    class Faults(chaos.Faults):  # type: ignore[misc, name-defined]
        async def kill_operator(self) -> None:
            seen.append(self.operator.environment.get("FAKETIME"))

        def _has_another_clock(self) -> bool:
            return True

    async def at_once(_: float) -> None: ...

    monkeypatch.setattr(chaos, "own_clock", lambda offset: {"FAKETIME": offset})
    monkeypatch.setattr(chaos.asyncio, "sleep", at_once)
    asyncio.run(Faults(None, Operator(), None, random.Random(1)).clock())
    assert seen[0] in ("-90", "+90", "+3600", "-600")
    assert seen[1:] == [None]
    assert Operator.environment == {"HOME": "/"}


def test_the_seed_draws_the_same_fates(load: Any) -> None:
    chaos = load("chaos")
    drawn = [
        [chaos.Story("ns", str(n), chance).fate for n in range(50)] for chance in (random.Random(5), random.Random(5))
    ]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 3


def test_a_slope_is_told_from_noise(load: Any) -> None:
    slope = load("soak").slope
    chance = random.Random(0)
    minutes = [n / 6 for n in range(120)]
    flat = [100 + chance.gauss(0, 1) for _ in minutes]
    rise, low, high = slope(minutes, flat)
    assert low < 0 < high
    assert low < rise < high
    leak = [value + minute for value, minute in zip(flat, minutes, strict=True)]
    assert slope(minutes, leak)[1] > 50, "a MiB a minute is 60 an hour"
    assert math.isnan(slope(minutes[:6], flat[:6])[0]), "too short to say"


def test_lines_that_nobody_explains_are_counted(load: Any) -> None:
    lines = [
        json.dumps({"level": "info", "message": "fine"}),
        json.dumps({"level": "warning", "message": "refused: the run is over"}),
        json.dumps({"level": "error", "message": "pod 12345678-aaaa is odd"}),
        json.dumps({"level": "error", "message": "pod 87654321-bbbb is odd"}),
        "Traceback (most recent call last):",
    ]
    assert load("soak").unexplained("\n".join(lines)) == {"pod # is odd": 2, "Traceback (most recent call last):": 1}


def test_a_soak_is_judged_from_when_all_of_its_runs_live(load: Any) -> None:
    chance = random.Random(0)

    def sample(minute: float) -> dict[str, Any]:
        talking = 200 if minute >= 10 else 60  # an API server without a processor lets few of them in
        held = dict.fromkeys(("memory", "sockets", "descriptors"), talking + chance.gauss(0, 1))
        return {"stretch": 1, "minute": minute, "talking": talking, "cpu": minute, "ended": 1, "load": 1.0, **held}

    soak = load("soak")
    lines = [sample(tick / 6) for tick in range(6 * 60)]
    slopes = {figure.name: figure for figure in soak.judge(lines) if "slope" in figure.name}
    assert all(figure.good for figure in slopes.values()), slopes
    rising = [{**line, "memory": line["memory"] + line["minute"]} for line in lines]
    assert not next(figure for figure in soak.judge(rising) if figure.name == "memory, slope").good


def test_a_soak_goes_on_with_a_record_whose_last_line_was_cut(load: Any, tmp_path: Path) -> None:
    record = tmp_path / "soak.jsonl"
    record.write_text('{"stretch": 1, "minute": 0.1}\n{"stretch": 1, "minute": 5.1}\n{"stretch": 1, "minu')
    soak = load("soak")
    assert soak.lasted(soak._read(record)) == {1: 5.0}


@pytest.mark.parametrize("minutes", [0, 1, 3])
def test_a_soak_too_short_to_judge_says_how_long_it_has_to_be(load: Any, minutes: int) -> None:
    """Its runs are still arriving: nothing was seen with all of them there."""
    arriving = [
        {"stretch": 1, "minute": tick / 6, "talking": tick, "memory": 90.0, "sockets": 9, "descriptors": 9, "cpu": 1.0}
        for tick in range(6 * minutes)
    ]
    soak = load("soak")
    with pytest.raises(soak.TooShort, match="--minutes 5"):
        soak.judge(arriving)


def test_a_soak_of_three_minutes_shows_figures_and_no_slope(load: Any) -> None:
    soak = load("soak")
    steady = {
        "stretch": 1,
        "talking": 5,
        "memory": 90.0,
        "sockets": 9,
        "descriptors": 9,
        "cpu": 1.0,
        "ended": 1,
        "load": 1,
    }
    figures = {figure.name: figure for figure in soak.judge([{**steady, "minute": tick / 6} for tick in range(18)])}
    assert figures["operator's memory after the first minutes"].measured == "90 to 90 MiB"
    assert figures["memory, slope"].measured == "too few minutes to say"
    assert figures["memory, slope"].good is None


def test_of_a_long_soak_the_second_half_is_judged(load: Any) -> None:
    """A process finds its size in the first hour; what leaks does so in the second too."""
    chance = random.Random(0)
    soak = load("soak")

    def record(leak: float) -> list[dict[str, Any]]:
        lines = []
        for tick in range(6 * 120):
            minute = tick / 6
            memory = 140 - 20 * math.exp(-minute / 10) + leak * minute / 60 + chance.gauss(0, 0.3)
            held = {"memory": memory, "sockets": 220 + chance.gauss(0, 1), "descriptors": 240 + chance.gauss(0, 1)}
            lines.append(
                {"stretch": 1, "minute": minute, "talking": 200, "cpu": minute, "ended": 1, "load": 1.0, **held}
            )
        return lines

    def verdict(leak: float) -> bool | None:
        return next(figure.good for figure in soak.judge(record(leak)) if figure.name == "memory, slope")

    assert verdict(0.0) is True
    assert verdict(1.0) is False, "a MiB an hour is seen"


def test_what_moves_in_steps_is_no_trend(load: Any) -> None:
    """Minutes that follow each other say less than as many that do not."""
    steps = [0.0] * 20 + [0.3] * 15 + [0.1] * 15 + [0.3] * 10
    chance = random.Random(1)
    _, low, high = load("soak").slope([n + 0.5 for n in range(60)], [value + chance.gauss(0, 0.02) for value in steps])
    assert low <= 0 <= high
