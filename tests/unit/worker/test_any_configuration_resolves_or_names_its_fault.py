"""Random and mutated configurations never end in a traceback.

CLEANRL_FUZZ_EXAMPLES sets how many (10,000 for the full figure).
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cleanrl_worker import cli, registry
from cleanrl_worker.flags import WORKER_KEYS

EXAMPLES = int(os.environ.get("CLEANRL_FUZZ_EXAMPLES", "1000"))

BASE: dict[str, Any] = {
    "resources": {"gpus": {"requested": 0, "mandatory": 0}, "cpus": 2},
    "schedule": {"max_duration_seconds": 10},
    "artifacts": {"tensorboard": {"enabled": True}, "wandb": {"enabled": False}},
    "environment": {"A": "b"},
    "max_wallclock_minutes": 3,
    "metadata": {
        "worker": {
            "worker_id": "w",
            "config": {
                "run_id": "r",
                "algo": "ppo",
                "env_id": "CartPole-v1",
                "seed": 1,
                "total_timesteps": 100,
                "extras": {"mode": "train", "algo_params": {"learning_rate": 1e-3}, "cuda": False, "notes": "n"},
            },
        }
    },
}

keys = st.one_of(
    st.sampled_from(sorted(WORKER_KEYS)),
    st.sampled_from(["run_id", "algo", "env_id", "seed", "total_timesteps", "extras", "metadata", "worker", "config"]),
    st.sampled_from(["learning_rate", "num_envs", "resources", "gpus", "requested", "environment", "schedule"]),
    st.text(max_size=8),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["", "ppo", "dqn", "plugin.x", "cleanrl.ppo", "${RUN_ID}", "${NOPE}", "policy_eval", "\ud800", "\x00"]
    ),
    st.sampled_from(sorted(registry.DEFAULT_ALGO_REGISTRY)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=8,
)


def paths(data: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [prefix] if prefix else []
    if isinstance(data, dict):
        for key, value in data.items():
            found += paths(value, (*prefix, key))
    return found


PATHS = paths(BASE)


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    data = copy.deepcopy(BASE)
    for path in draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=4)):
        where: Any = data
        for key in path[:-1]:
            where = where.get(key) if isinstance(where, dict) else None
        if isinstance(where, dict):
            how = draw(st.sampled_from(["drop", "replace", "add"]))
            if how == "drop":
                where.pop(path[-1], None)
            elif how == "replace":
                where[path[-1]] = draw(values)
            else:
                where[draw(keys)] = draw(values)
    return data


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.one_of(mutated(), st.dictionaries(keys, values, max_size=6), values))
def test_no_traceback(data: Any, tmp_path_factory: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.json"
    Path(file).write_text(json.dumps(data))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["--config", str(file), "--dry-run"])
    if out.getvalue():
        shown = json.loads(out.getvalue())
        assert shown["status"] == "dry-run"
        assert shown["config"]["total_timesteps"] >= 1
        assert code == 0 or shown["problems"]
    if code != 0:
        assert code == 2
        assert err.getvalue().startswith("cleanrl-worker: ")
        assert ": " in err.getvalue().removeprefix("cleanrl-worker: ")
