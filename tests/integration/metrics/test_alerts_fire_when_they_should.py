"""The chart's rules, judged by promtool: each alert fires on its own trouble and on nothing else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import yaml

RULES = Path(__file__).parents[3] / "helm" / "cleanrl-operator" / "rules" / "cleanrl.yaml"
CASES = Path(__file__).parent / "alerts.yaml"


def run_cases(promtool: str, folder: Path, rules: str) -> subprocess.CompletedProcess[str]:
    (folder / RULES.name).write_text(rules)
    shutil.copy(CASES, folder)
    command = [promtool, "test", "rules", CASES.name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_rules_are_well_formed(promtool: str) -> None:
    checked = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_case_comes_out_as_written(promtool: str, tmp_path: Path) -> None:
    answer = run_cases(promtool, tmp_path, RULES.read_text())
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test.get("alert_rule_test", ())]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts


def test_a_rule_that_was_weakened_is_noticed(promtool: str, tmp_path: Path) -> None:
    text = RULES.read_text()
    for number, (before, after) in enumerate([("> 120", "> 12000"), ("0.25 *", "0.01 *"), ("for: 15m", "for: 25m")]):
        assert before in text
        folder = tmp_path / str(number)
        folder.mkdir()
        assert run_cases(promtool, folder, text.replace(before, after)).returncode != 0, before
