"""Every panel of both dashboards has something to show of a run that trains, and every name in them exists."""

from __future__ import annotations

import json
import math
import re
import subprocess
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CHART = Path(__file__).parents[3] / "helm" / "cleanrl-operator"
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))


def text_of(prometheus: Any, job: str) -> bytes:
    """A target's own page."""
    (series,) = prometheus.query(f'up{{job="{job}"}}')
    with urllib.request.urlopen(f"http://{series['metric']['instance']}/metrics", timeout=30) as answer:
        page: bytes = answer.read()
    return page


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_has_something_to_show(watched: Any, observatory: ModuleType, dashboard: Path) -> None:
    empty, odd = [], []
    for panel in observatory.panels(dashboard):
        for expression, legend in panel["queries"]:
            series = watched.query(expression)
            if not series:
                empty.append(f"{panel['title']}: {expression}")
            for each in series:
                if not math.isfinite(float(each["value"][1])):
                    odd.append(f"{panel['title']}: {each}")
                missing = [name for name in re.findall(r"{{(\w+)}}", legend) if name not in each["metric"]]
                assert not missing, f"{panel['title']}: its legend names {missing}, which {each['metric']} lacks"
    assert empty == []
    assert odd == []


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported_as_it_is(dashboard: Path) -> None:
    body = json.loads(dashboard.read_text())
    assert body["uid"] == dashboard.stem
    panels = body["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {variable["name"] for variable in body["templating"]["list"]}
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}", "no data source of ours is wired in"
        used = {name for target in panel["targets"] for name in re.findall(r"\$(\w+)", target["expr"])}
        assert used <= variables, panel["title"]
        assert {"unit"} <= panel["fieldConfig"]["defaults"].keys(), panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]), panel["title"]
    (source,) = [variable for variable in body["templating"]["list"] if variable["name"] == "datasource"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    for link in body["links"]:  # what Grafana's own schema asks of a link
        assert {"title", "type", "icon", "tooltip", "targetBlank", "tags", "asDropdown"} <= link.keys()
    places = [panel["gridPos"] for panel in panels]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells)), "two panels overlap"
    assert max(x for x, _ in cells) < 24


def test_figures_are_those_of_the_run(watched: Any) -> None:
    def one(expression: str) -> float:
        (series,) = watched.query(expression)
        return float(series["value"][1])

    assert one("sum(cleanrl_run_executing)") == 1
    assert one("cleanrl_run_step") <= one("cleanrl_worker_env_steps_total")
    assert 0 < one("cleanrl_run_progress_ratio") < 1
    assert one("cleanrl_worker_rolling_return") > 5, "an episode of CartPole has more steps than that"
    (series,) = watched.query("cleanrl_run_episodic_return")
    assert {name: series["metric"][name] for name in ("namespace", "run", "algo", "env")} == {
        "namespace": "ml",
        "run": "cartpole",
        "algo": "ppo",
        "env": "CartPole-v1",
    }


def test_a_healthy_run_alarms_nobody(watched: Any) -> None:
    assert watched.query("namespace_run:cleanrl_run_episodic_return"), "the rules are not evaluated"
    assert watched.alerts() == set()


@pytest.mark.parametrize("job", ["worker", "operator"])
def test_names_and_units_keep_to_the_conventions(watched: Any, promtool: str, job: str) -> None:
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text_of(watched, job), capture_output=True, check=False
    )
    assert checked.returncode == 0, (checked.stdout + checked.stderr).decode()
    assert checked.stderr == b"", "a remark of its linter"


def test_a_worker_page_tells_all_that_was_promised(watched: Any) -> None:
    page = text_of(watched, "worker").decode()
    promised = (
        *("last_reward", "rolling_return", "steps_per_second", "env_steps_total", "progress_ratio", "episode_return"),
        *("episode_length_steps", "loss", "checkpoint_age_seconds", "frame_rate_hertz", "learning_rate", "healthy"),
    )
    assert [name for name in promised if f"\ncleanrl_worker_{name}" not in page] == []


def test_rules_and_dashboards_name_only_what_exists(watched: Any) -> None:
    rules = (CHART / "rules" / "cleanrl.yaml").read_text()
    text = rules + "".join(path.read_text() for path in DASHBOARDS)
    named = set(re.findall(r"\bcleanrl_(?:run|worker|operator|gateway)_\w+", text))
    missing = {name for name in named if not watched.query(name)}
    recorded = set(re.findall(r"record: \w+:(cleanrl_\w+)", rules))
    assert missing - recorded == set()
