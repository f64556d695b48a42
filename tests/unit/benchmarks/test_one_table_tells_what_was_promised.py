"""One table from many records: what was measured is judged by its target, and what was not is said."""

from __future__ import annotations

import importlib
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("bench")


@pytest.fixture
def robust(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("robust")


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Records of two benchmarks, one of each kind."""
    figures = [
        {"name": "p50, runs as a share of Jobs", "measured": "0.40", "target": "at most 0.50", "good": True},
        {"name": "p99, runs as a share of Jobs", "measured": "5.67", "target": "at most 0.50", "good": False},
    ]
    part = {
        "commit": "abcdefghij",
        "date": "2026-01-01",
        "load": [0.5, 0, 0],
        "machine": "m",
        "title": "t",
        "figures": figures,
    }
    (tmp_path / "operator.json").write_text(json.dumps({"burst": part}))
    lines = [
        "algorithm  environment  steps",
        "ppo   CartPole-v1   20,038   3,700",
        "pqn   CartPole-v1   15,000   5,600",
    ]
    record = {"lines": lines, "commit": "0123456789", "date": "2026-01-02", "load": [3.0, 0, 0], "machine": "n"}
    (tmp_path / "records" / "bench").mkdir(parents=True)
    (tmp_path / "records" / "bench" / "throughput.json").write_text(json.dumps(record))
    return tmp_path


def rows(page: str, begins: str) -> list[list[str]]:
    found = [line for line in page.splitlines() if line.startswith(f"| {begins}")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def test_a_figure_is_judged_and_names_its_record(bench: Any, pages: Path) -> None:
    page = bench.collect(pages)
    ppo = rows(page, "ppo, steps")[0]
    assert ppo[1:] == [
        "at least 14,000",
        "20,038",
        "1.43",
        "upstream 3,700, another machine",
        "met",
        "2026-01-02, 0123456, load 3",
    ]
    assert rows(page, "pqn, steps")[0][5] == "**missed**"
    assert rows(page, "burst, p50")[0][2:6] == ["0.40", "0.80", "Jobs = 1", "met"]
    assert rows(page, "burst, p99")[0][5].startswith("**missed**: ")


def test_the_machines_are_those_of_the_records(bench: Any, pages: Path) -> None:
    assert "The records are of m; n." in bench.collect(pages).splitlines()


def test_what_was_not_measured_is_not_met(bench: Any, pages: Path) -> None:
    page = bench.collect(pages)
    assert rows(page, "dqn, steps")[0][2] == "not measured"
    summary = next(line for line in page.splitlines() if line.startswith("Of "))
    assert " 2 are met, 2 missed" in summary


def test_the_summary_adds_up(bench: Any) -> None:
    """Figures without a target are neither met nor missed, and no promises."""
    summary = next(line for line in bench.collect(bench.PAGES).splitlines() if line.startswith("Of "))
    numbers = [int(number) for number in re.findall(r"\d+", summary)]
    assert numbers[0] == sum(numbers[1:4])
    assert summary.endswith("figures more have no target.")


def test_the_short_form_speaks_only_of_what_it_measured(bench: Any, pages: Path) -> None:
    page = bench.collect(pages, measured_only=True)
    assert "not measured" not in page.replace("0 not measured", "")
    assert "Of 4 promises 2 are met, 2 missed, 0 not measured." in page.splitlines()


def test_the_short_form_leaves_the_pages_alone(bench: Any) -> None:
    """Every page that a short form writes goes into the folder that it is given."""
    for command in bench.COMMANDS.values():
        assert not any("docs/" in argument for argument in (*command.arguments, *command.quick))
        assert all(
            command.quick[at + 1].startswith("{out}")
            for at, flag in enumerate(command.quick)
            if flag in ("--out", "--page")
        )


def test_every_row_has_a_benchmark_and_every_pattern_a_number(bench: Any) -> None:
    for row in bench.ROWS:
        assert row.benchmark in bench.COMMANDS or row.benchmark in ("operator", "shows"), row.figure
        assert row.regex.groups >= 1 or row.benchmark in ("operator", "shows", "chaos", "soak"), row.figure
        assert (row.direction is None) == (row.target is None), row.figure


def test_no_target_of_a_record_is_left_out_of_the_table(bench: Any) -> None:
    for store in ("operator", "shows", "chaos", "soak"):
        rows = [row for row in bench.ROWS if row.benchmark == store]
        for part, found in json.loads((bench.PAGES / f"{store}.json").read_text()).items():
            for figure in found["figures"]:
                told = any(row.regex.search(figure["name"]) for row in rows if row.part in ("", part))
                assert told or figure["good"] is None, f"{store}, {part}: {figure['name']}"


def test_every_plot_is_shown_or_linked_from_a_page(bench: Any) -> None:
    told = "".join(page.read_text() for page in bench.PAGES.glob("*.md"))
    assert [plot.name for plot in bench.PAGES.glob("*.png") if f"({plot.name})" not in told] == []


def test_what_jobs_did_stands_beside(bench: Any, pages: Path) -> None:
    parts = json.loads((pages / "operator.json").read_text())
    figure = {"name": "300 at once: pods per second", "measured": "102; Jobs 177", "target": "", "good": None}
    parts["growth"] = {**parts["burst"], "figures": [figure]}
    (pages / "operator.json").write_text(json.dumps(parts))
    assert rows(bench.collect(pages), "300 at once: pods per second")[0][2:5] == ["102", "", "Jobs 177"]


def test_figures_over_seeds_name_the_days_and_commits_of_theirs(bench: Any, pages: Path) -> None:
    folder = pages / "records" / "scores"
    folder.mkdir()
    for seed, day, made_by in ((1, "2026-01-03", "aaaaaaaaa"), (2, "2026-01-01", "bbbbbbbbb")):
        record = {
            "case": "ppo-CartPole-v1",
            "seed": seed,
            "last": 499.0,
            "date": day,
            "commit": made_by,
            "machine": "m",
        }
        (folder / f"ppo-CartPole-v1-{seed}.json").write_text(json.dumps(record))
    page = ["Commit ccccccccc, m, 2026-01-02.", "", "| ppo | CartPole-v1 | 500,000 | 499.0 ± 1.1 |"]
    (pages / "scores.md").write_text("\n".join(page))
    told = rows(bench.collect(pages), "ppo on CartPole-v1")[0]
    assert told[-1] == "2026-01-01 to 2026-01-03, aaaaaaa, bbbbbbb"


def test_a_benchmark_that_broke_off_leaves_the_record_that_there_is(
    bench: Any, pages: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = (pages / "records" / "bench" / "throughput.json").read_text()
    script = tmp_path / "tests" / "benchmarks" / "throughput.py"
    script.parent.mkdir(parents=True)
    script.write_text("raise SystemExit('no such thing')")
    monkeypatch.setattr(bench, "PROJECT", tmp_path)
    assert not bench.run("throughput", pages)
    assert (pages / "records" / "bench" / "throughput.json").read_text() == kept
    script.write_text("print('ppo   CartPole-v1   9,038   3,700'); raise SystemExit(1)")
    assert not bench.run("throughput", pages)
    assert rows(bench.collect(pages), "ppo, steps")[0][2] == "9,038", "a target that was missed is a measurement"


def test_the_interquartile_mean_leaves_out_both_ends(robust: Any) -> None:
    assert robust.iqm([0, 10, 20, 30, 1000]) == 20
    assert robust.iqm([1, 2, 3, 100]) == 2.5
    assert robust.iqm([7]) == 7


def test_an_interval_holds_the_statistic_and_narrows_with_more_seeds(robust: Any) -> None:
    few, many = [float(n) for n in range(5)], [float(n) for n in range(5)] * 20
    low, high = robust.interval([few])
    assert low <= robust.iqm(few) <= high
    closer = robust.interval([many])
    assert closer[1] - closer[0] < (high - low) / 2
    assert robust.interval([few]) == (low, high), "the same seed draws the same"
    assert robust.interval([[5.0] * 5, [5.0] * 3]) == (5.0, 5.0)


def test_cases_are_resampled_apart(robust: Any) -> None:
    """Two cases that never vary have no spread together, however far apart they are: no case is drawn more often by chance."""
    assert robust.interval([[0.0] * 5, [100.0] * 5], statistics.fmean) == (50.0, 50.0)
