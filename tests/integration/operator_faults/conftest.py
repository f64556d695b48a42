"""The laboratory of the operator's own tests, and an operator whose wall clock the test may set.

Which fault is tried where (`operator/` and `unit/` are other folders of tests, script is tests/benchmarks/operator_faults.py):

| Fault | Where |
|---|---|
| kill -9 between a pod and its status, and at random moments | operator/test_faults_change_no_ending, test_kills_at_any_point |
| kill -9 through 200 runs' lives | script, `kills` |
| API server away | operator/test_faults_change_no_ending; for 60 s: script, `outage` |
| 429, 500, 409, lost answers, cut watches | operator/test_faults_change_no_ending; as a storm: script, `storm` |
| a watch whose history is lost, with a pod gone meanwhile | unit/operator/test_no_end_of_a_pod_is_missed |
| wall clock jumps, forwards and back | test_clocks_jump; by libfaketime: script, `clocks` |
| operator away, also for an hour | operator/test_faults_change_no_ending, test_clocks_jump |
| pod deleted by hand, claim deleted or replaced, name taken | operator/test_every_ending_is_told_apart |
| node lost | test_old_pods_are_outlived; with pretended nodes: script, `nodes` |
| an old pod that still writes | operator/test_every_ending_is_told_apart |
| an old pod that is stuck in Terminating | test_old_pods_are_outlived |
| everything at random, over 500 pretended and 30 real runs | tests/benchmarks/chaos.py (`make chaos`) |
| two leaders, lease lost | operator/test_one_leads_and_the_next_is_ready |
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def _laboratory() -> Any:
    """The neighbours' conftest as a module: one laboratory, two folders of tests."""
    spec = importlib.util.spec_from_file_location("operator_laboratory", HERE.parent / "operator" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


laboratory = _laboratory()
cluster, make_operator, make_lab = laboratory.cluster, laboratory.make_operator, laboratory.make_lab


@pytest.fixture
def until() -> Any:
    """Ask until the answer is true."""
    return laboratory.until


JUMPING = """
import datetime, os, pathlib, sys
import cleanrl_operator.program as program

offset = pathlib.Path(sys.argv.pop())

class Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.now(tz) + datetime.timedelta(seconds=float(offset.read_text() or 0))

program.datetime = Jumping
from cleanrl_operator.main import main
sys.exit(main())
"""


@pytest.fixture
def jumping_operator(
    make_operator: Callable[..., Any], tmp_path: Path
) -> Iterator[tuple[Any, Callable[[float], None]]]:
    """An operator, started, and a function that sets its wall clock so many seconds off."""
    offset = tmp_path / "offset"
    offset.write_text("0")
    operator = make_operator("jumping", operator_class="jumping")

    def start(*, wait: bool = True) -> Any:
        with operator.log.open("ab") as stream:
            operator.process = subprocess.Popen(
                [sys.executable, "-c", JUMPING, str(offset)], env=operator.environment, stdout=stream, stderr=stream
            )
        if wait:
            laboratory.until(operator.leads, lambda: operator.log.read_text()[-3000:])
        return operator

    def jump(seconds: float) -> None:
        beside = offset.with_suffix(".new")
        beside.write_text(str(seconds))
        beside.replace(offset)

    operator.start = start
    start()
    yield operator, jump
    assert operator.stop() == 0
