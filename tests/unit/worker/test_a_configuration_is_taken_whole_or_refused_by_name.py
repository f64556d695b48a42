"""Both forms of configuration, the keys of a job descriptor, overrides, placeholders, and one error for all faults."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.config import CleanRLWorkerConfig, ConfigError, WorkerConfig, load_worker_config
from cleanrl_worker.redact import HIDDEN

FLAT = {"run_id": "r1", "algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100}
JOB = {
    "run_name": "cleanrl-ppo-cartpole",
    "resources": {"gpus": {"requested": 0, "mandatory": 0}, "cpus": {"requested": 2}},
    "metadata": {
        "worker": {
            "type": "cleanrl",
            "module": "cleanrl_worker.cli",
            "config": {
                "run_id": "${RUN_ID}",
                "algo": "ppo",
                "env_id": "CartPole-v1",
                "seed": 42,
                "total_timesteps": 50000,
                "extras": {
                    "track_wandb": False,
                    "tensorboard_dir": "${VAR_TENSORBOARD_DIR}/${RUN_ID}",
                    "requirements": ["base"],
                    "notes": "smoke test",
                },
            },
        }
    },
}
TRAINER_FORM = {
    "run_name": "cleanrl-dqn-20250101-000000",
    "entry_point": "python",
    "arguments": ["-m", "cleanrl_worker.cli"],
    "environment": {"CLEANRL_NUM_ENVS": "4", "TRACK_TENSORBOARD": "1"},
    "resources": {"cpus": 4, "memory_mb": 4096, "gpus": {"requested": 0, "mandatory": False}},
    "artifacts": {"output_prefix": "runs/x", "persist_logs": True, "keep_checkpoints": False},
    "metadata": {
        "ui": {"worker_id": "cleanrl_worker", "agent_id": "a", "fastlane_only": True},
        "worker": {
            "worker_id": "cleanrl_worker",
            "module": "cleanrl_worker.cli",
            "use_grpc": True,
            "grpc_target": "127.0.0.1:50055",
            "arguments": [],
            "config": {
                "run_id": "cleanrl-dqn-20250101-000000",
                "algo": "dqn",
                "env_id": "CartPole-v1",
                "total_timesteps": 2048,
                "seed": 1,
                "worker_id": None,
                "extras": {
                    "mode": "train",
                    "algo_params": {"learning_rate": 1e-4, "capture_video": False},
                    "cuda": True,
                    "tensorboard_dir": "tensorboard",
                    "track_wandb": False,
                    "agent_id": "agent-1",
                    "fastlane_only": True,
                    "fastlane_slot": 0,
                    "fastlane_video_mode": "single",
                    "fastlane_grid_limit": 4,
                    "schema_id": "cleanrl.dqn",
                    "schema_version": 1,
                    "supports_pause": False,
                    "supports_checkpoint": False,
                    "optuna_db": None,
                    "checkpoints_dir": None,
                },
            },
        },
        "artifacts": {"tensorboard": {"enabled": True, "relative_path": "tensorboard"}, "wandb": {"enabled": False}},
    },
}


def read(data: Any, env: dict[str, str] | None = None, **overrides: Any) -> CleanRLWorkerConfig:
    return CleanRLWorkerConfig.from_dict(data, overrides=overrides, env=env or {})


def faults(data: Any, env: dict[str, str] | None = None, **overrides: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(data, env, **overrides)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def job(**worker: Any) -> dict[str, Any]:
    return {"metadata": {"worker": {"config": {**FLAT, **worker}}}}


def test_the_flat_form() -> None:
    config = read(FLAT)
    assert (config.run_id, config.algo, config.env_id, config.total_timesteps) == ("r1", "ppo", "CartPole-v1", 100)
    assert (config.seed, config.worker_id, dict(config.extras), config.mode) == (None, None, {}, "train")
    assert config.cuda is False
    assert config.tensorboard_dir == "tensorboard"


def test_the_nested_form_with_placeholders() -> None:
    config = read(JOB, env={"CLEANRL_RUN_ID": "abc"})
    assert config.run_id == "abc"
    assert config.seed == 42
    assert config.tensorboard_dir == "tensorboard/abc"
    assert config.raw["metadata"]["worker"]["config"]["run_id"] == "${RUN_ID}", "raw stays as it came"


@pytest.mark.parametrize("whole", [{**FLAT, "algo_params": {"gamma": 0.9}}, job(algo_params={"gamma": 0.9})])
def test_what_nobody_reads_is_named(whole: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Flags of the algorithm beside `extras` would be lost without a word."""
    assert read(whole).algo_params == {}
    assert "algo_params" in caplog.text
    assert "extras.algo_params" in caplog.text


@pytest.mark.parametrize("whole", [FLAT, JOB, TRAINER_FORM, read(TRAINER_FORM).to_dict()])
def test_what_is_read_is_not_complained_of(whole: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    read(whole, env={"CLEANRL_RUN_ID": "r"})
    assert caplog.text == ""


def test_a_workers_id_has_no_blanks_around_it() -> None:
    assert read(job(worker_id=" w 1 ")).worker_id == "w 1"
    assert read(job(worker_id="  ")).worker_id is None


def test_the_trainers_own_form_is_taken_as_it_is() -> None:
    config = read(TRAINER_FORM)
    assert config.worker_id == "cleanrl_worker"
    assert config.cuda is True
    assert config.environment["CLEANRL_NUM_ENVS"] == "4"


def test_the_trainers_form_for_scripts() -> None:
    def descriptor(**section: Any) -> dict[str, Any]:
        return {"metadata": {"worker": {"config": {**FLAT, "extras": {"notes": "n"}}, **section}}}

    by_shell = read(descriptor(script="/bin/bash", arguments=["-e", "/scripts/my phases.sh", "more"]))
    assert (by_shell.mode, by_shell.extras["script_path"]) == ("script", "/scripts/my phases.sh")
    assert read(descriptor(script="quick_test.sh")).extras["script_path"] == "quick_test.sh"
    assert read(descriptor(module="cleanrl_worker.cli", script="x.sh")).mode == "train", "a module comes first"
    assert "requires the script to run" in faults(descriptor(script="/bin/bash", arguments=["-e"]))[0]
    for mode in ("script", "custom_script", None):
        told = {**FLAT, "extras": {"mode": mode, "script_path": None}}
        assert read(descriptor(script="x.sh", config=told)).extras["script_path"] == "x.sh"
    own = {**FLAT, "extras": {"mode": "script", "script_path": "own.sh"}}
    assert read(descriptor(script="x.sh", config=own)).extras["script_path"] == "own.sh"


@pytest.mark.parametrize("name", ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "my-run_1.2", "7"])
def test_a_safe_id_is_kept(name: str) -> None:
    assert read({**FLAT, "run_id": name}).run_id == name


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "a b", "-x", "a\n", "x" * 129, "é"])
def test_an_unsafe_id_is_refused(name: str) -> None:
    assert faults({**FLAT, "run_id": name})[0].startswith("run_id: ")


@pytest.mark.parametrize("given", [{}, {"run_id": None}, {"run_id": " "}])
def test_an_id_is_made_when_there_is_none(given: dict[str, Any]) -> None:
    data = {name: value for name, value in FLAT.items() if name != "run_id"} | given
    made = read(data).run_id
    assert len(made) == 26
    assert made != read(data).run_id
    assert (
        read(data, env={"CLEANRL_RUN_ID": "", "MOSAIC_RUN_ID": "theirs", "RUN_ID": "of-something-else"}).run_id
        == "theirs"
    )


def test_every_fault_is_named_in_one_error() -> None:
    problems = faults(
        {
            "algo": "ppoo",
            "env_id": None,
            "total_timesteps": -4,
            "seed": "x",
            "extras": {"mode": "fly", "cuda": "maybe", "fastlane_slot": -1, "tensorboard_dir": "${NOPE}"},
            "resources": {"gpus": -1},
            "environment": {"1bad": "x"},
            "max_wallclock_minutes": 0,
        }
    )
    text = "\n".join(problems)
    for path in (
        *("algo: ", "env_id: ", "total_timesteps: ", "seed: ", "extras.mode: ", "extras.cuda: "),
        *("extras.fastlane_slot: ", "extras.tensorboard_dir: ${NOPE}", "resources.gpus.requested: "),
        *("environment: ", "max_wallclock_minutes: "),
    ):
        assert text.count(path) == 1, path
    assert "did you mean ppo?" in text
    assert 'got "fly"' in text


@pytest.mark.parametrize("field", ["algo", "env_id", "total_timesteps"])
@pytest.mark.parametrize("value", [None, "", [], {}, True])
def test_required_fields_are_required(field: str, value: Any) -> None:
    assert any(problem.startswith(f"{field}: ") for problem in faults({**FLAT, field: value}))
    missing = {name: given for name, given in FLAT.items() if name != field}
    assert any(problem.startswith(f"{field}: ") for problem in faults(missing))


@pytest.mark.parametrize("value", [2048, "2048", 2048.0])
def test_numbers_may_come_as_text(value: Any) -> None:
    assert read({**FLAT, "total_timesteps": value}).total_timesteps == 2048


@pytest.mark.parametrize("value", [0, -1, 1.5, "abc", 2**63, float("inf"), "1e3"])
def test_step_counts_that_make_no_sense(value: Any) -> None:
    assert any(problem.startswith("total_timesteps: ") for problem in faults({**FLAT, "total_timesteps": value}))


def test_evaluation_counts_episodes_instead() -> None:
    extras = {"mode": "policy_eval", "policy_path": "m", "eval_episodes": 7}
    assert read({**FLAT, "total_timesteps": 0, "extras": extras}).total_timesteps == 7
    assert read({"algo": "ppo", "env_id": "E-v0", "extras": extras}).total_timesteps == 7
    assert faults({**FLAT, "total_timesteps": 0, "extras": {"mode": "policy_eval", "policy_path": "m"}})
    assert "policy_eval mode requires a policy_path extra" in faults({**FLAT, "extras": {"mode": "policy_eval"}})[0]


def test_resuming_needs_something_to_resume_from() -> None:
    extras = {"mode": "resume_training"}
    assert faults({**FLAT, "extras": extras})[0].startswith("extras.checkpoint_path: ")
    assert read({**FLAT, "extras": {**extras, "checkpoint_path": "x"}}).mode == "resume_training"
    assert read({**FLAT, "extras": {**extras, "policy_path": "x"}}).extras["checkpoint_path"] == "x"
    assert (
        read({**FLAT, "extras": {**extras, "policy_path": "x", "checkpoint_path": "y"}}).extras["checkpoint_path"]
        == "y"
    )
    assert read({**FLAT, "extras": extras}, env={"CLEANRL_RESUME_PATH": "x"}).mode == "resume_training"
    assert read({**FLAT, "extras": extras, "environment": {"CLEANRL_RESUME_PATH": "x"}}).mode == "resume_training"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "expected a JSON object"),
        ({"metadata": None}, "metadata missing"),
        ({"metadata": {}}, "metadata.worker missing"),
        ({"metadata": {"worker": {}}}, "metadata.worker.config missing from trainer config payload"),
    ],
)
def test_a_descriptor_without_the_workers_part(data: Any, words: str) -> None:
    assert words in faults(data)[0]


def test_overrides_win_and_can_repair_a_field() -> None:
    config = read(
        {**job(algo="dqn", total_timesteps="nonsense", seed=5), "resources": {"gpus": 2}},
        algo="ppo",
        total_timesteps=9,
        seed=0,
        worker_id="w",
        run_id="other",
        gpus=0,
        max_wallclock_minutes=2,
        tensorboard=False,
        wandb=True,
        extras={"notes": "n"},
    )
    assert (config.algo, config.total_timesteps, config.seed, config.run_id) == ("ppo", 9, 0, "other")
    assert (config.worker_id, config.gpus, config.max_wallclock_seconds) == ("w", 0, 120.0)
    assert (config.tensorboard_dir, config.wandb, config.extras["notes"]) == (None, True, "n")


def test_extras_are_merged_at_the_top_only() -> None:
    config = read(
        {**FLAT, "extras": {"notes": "a", "algo_params": {"learning_rate": 1.0}}},
        extras={"algo_params": {"gamma": 0.9}},
    )
    assert config.extras == {"notes": "a", "algo_params": {"gamma": 0.9}}


@pytest.mark.parametrize(
    ("extras", "gpus", "cuda"),
    [
        ({}, 0, False),
        ({}, 1, True),
        ({"cuda": False}, 1, False),
        ({"use_cuda": True}, 0, True),
        ({"gpu": 1}, 0, True),
        ({"cuda": None}, 2, True),
        ({"algo_params": {"cuda": "false"}}, 1, False),
        ({"algo_params": {"cuda": "yes"}}, 0, True),
    ],
)
def test_the_gpu_is_used_only_when_asked_for(extras: dict[str, Any], gpus: int, cuda: bool) -> None:
    assert read({**FLAT, "extras": extras, "resources": {"gpus": gpus}}).cuda is cuda
    assert read({**FLAT, "extras": extras, "resources": {"gpus": {"requested": gpus}}}).cuda is cuda


@pytest.mark.parametrize("extras", [{"cuda": True}, {"gpu": True}, {"algo_params": {"cuda": True}}])
@pytest.mark.parametrize(
    ("overrides", "cuda"),
    [({"cuda": False}, False), ({"gpus": "0"}, False), ({"gpus": 1, "cuda": False}, False), ({"gpus": 1}, True)],
)
def test_a_flag_decides_about_the_gpu(extras: dict[str, Any], overrides: dict[str, Any], cuda: bool) -> None:
    assert read({**FLAT, "extras": extras}, **overrides).cuda is cuda


def test_the_tightest_time_limit_counts() -> None:
    both = {**FLAT, "max_wallclock_minutes": 10, "schedule": {"max_duration_seconds": 30, "max_steps": 5}}
    assert read(both).max_wallclock_seconds == 30
    assert read({**FLAT, "extras": {"max_wallclock_minutes": 0.5}}).max_wallclock_seconds == 30
    assert read({**both, "metadata": {"worker": {"config": FLAT}}}).max_wallclock_seconds == 30


def test_artifacts_switch_tracking() -> None:
    off = {"tensorboard": {"enabled": False}, "wandb": {"enabled": True}}
    config = read({**job(), "artifacts": off})
    assert (config.tensorboard_dir, config.wandb) == (None, True)
    assert read({**job(extras={"track_wandb": False}), "artifacts": off}).wandb is False


@pytest.mark.parametrize(
    ("extras", "tracked"),
    [
        ({"track": True}, True),
        ({"track": "no"}, False),
        ({"algo_params": {"track": 1}}, True),
        ({"algo_params": {"track": "false"}}, False),
        ({"algo_params": {"track": None}}, False),
        ({"track": True, "track_wandb": False}, False),
    ],
)
def test_the_algorithms_own_switch_for_tracking_counts_as_it_is_written(extras: dict[str, Any], tracked: bool) -> None:
    assert read({**FLAT, "extras": extras}).wandb is tracked


def test_null_takes_nothing_back() -> None:
    descriptor = {
        **job(environment=None, resources=None, schedule=None, artifacts=None, max_wallclock_minutes=None),
        "environment": {"A": "b"},
        "resources": {"gpus": 1},
        "schedule": {"max_duration_seconds": 30},
        "artifacts": {"tensorboard": None},
    }
    descriptor["metadata"]["artifacts"] = {"tensorboard": {"enabled": False}}
    config = read(descriptor)
    assert (config.environment, config.gpus, config.max_wallclock_seconds) == ({"A": "b"}, 1, 30.0)
    assert config.tensorboard_dir is None


def test_placeholders_come_from_the_environment() -> None:
    data = {**FLAT, "extras": {"notes": ["${WHO}", {"deep": "${WHO}!"}]}, "environment": {"X": "${WHO}"}}
    config = read(data, env={"WHO": "me"})
    assert config.extras["notes"] == ("me", {"deep": "me!"})
    assert config.environment["X"] == "me"
    problems = faults(data)
    assert [problem.partition(":")[0] for problem in problems] == [
        "extras.notes[0]",
        "extras.notes[1].deep",
        "environment.X",
    ]
    assert "${WHO}" in problems[0]


def test_frozen_means_frozen() -> None:
    config = read({**FLAT, "extras": {"algo_params": {"gamma": 0.9}, "notes": [1, [2]]}})
    for change in (
        lambda: setattr(config, "seed", 1),
        lambda: config.extras.update(a=1),  # type: ignore[attr-defined]
        lambda: config.extras["algo_params"].pop("gamma"),
        lambda: config.extras["algo_params"].__setitem__("gamma", 1),
        lambda: config.extras["notes"].append(1),
        lambda: config.extras.__ior__({"a": 1}),  # type: ignore[attr-defined]
        lambda: config.raw.clear(),  # type: ignore[attr-defined]
    ):
        with pytest.raises((TypeError, AttributeError, dataclasses.FrozenInstanceError)):
            change()
    assert config.extras == {"algo_params": {"gamma": 0.9}, "notes": (1, (2,))}
    assert copy.deepcopy(config) == config == pickle.loads(pickle.dumps(config))
    json.dumps(config.extras)


def test_two_configurations_share_nothing() -> None:
    data: dict[str, Any] = {**FLAT, "extras": {"algo_params": {"gamma": 0.9}}}
    config = read(data)
    data["extras"]["algo_params"]["gamma"] = 0.1
    assert config.algo_params["gamma"] == 0.9


def test_with_overrides_checks_again_and_leaves_the_original() -> None:
    config = read({**FLAT, "extras": {"notes": "n", "wandb_api_key": "key-key-key"}, "environment": {"A": "1"}})
    changed = config.with_overrides(algo="dqn", seed=None, extras={"agent_id": "x"}, max_wallclock_seconds=5)
    assert (changed.algo, changed.max_wallclock_seconds, config.algo) == ("dqn", 5, "ppo")
    assert changed.extras == {"notes": "n", "agent_id": "x"}
    assert changed.secrets == config.secrets
    assert changed.environment == config.environment
    with pytest.raises(ConfigError):
        config.with_overrides(total_timesteps=-1)
    with pytest.raises(TypeError, match="no field tottal"):
        config.with_overrides(tottal=1)
    assert WorkerConfig is CleanRLWorkerConfig


@pytest.mark.parametrize("extras", [{"seed": 7}, {"algo_params": {"seed": 7, "gamma": 0.9}}])
def test_with_overrides_is_the_newer_word(extras: dict[str, Any]) -> None:
    assert read({**FLAT, "extras": extras}).with_overrides(seed=8).seed == 8


def test_a_run_that_is_named_as_before_has_that_name_wherever_its_own_stood() -> None:
    extras = {"tensorboard_dir": "/curves/${RUN_ID}", "algo_params": {"exp_name": "a-${RUN_ID}"}}
    data = {
        **FLAT,
        "run_id": None,
        "worker_id": "w-${RUN_ID}",
        "extras": extras,
        "environment": {"OUT": "/x/${RUN_ID}"},
    }
    config = read(data).with_overrides(total_timesteps=7).renamed("before")
    assert (config.run_id, config.worker_id, config.environment["OUT"]) == ("before", "w-before", "/x/before")
    assert (config.tensorboard_dir, config.algo_params["exp_name"]) == ("/curves/before", "a-before")
    named = read({**FLAT, "extras": {"notes": "run r1"}}).renamed("before")
    assert (named.run_id, named.extras["notes"]) == ("before", "run r1"), "a given name may be part of any word"


def test_secrets_are_kept_apart_and_hidden() -> None:
    config = read(
        {
            **FLAT,
            "algo": "plugin.x",
            "extras": {
                "wandb_api_key": "0123456789abcdef",
                "notes": "with 0123456789abcdef inside",
                "wandb_https_proxy": "http://user:pw@host:1",
                "algo_params": {"hf_token": "tok"},
            },
            "environment": {"WANDB_API_KEY": "fedcba9876543210", "PLAIN": "fedcba9876543210"},
        }
    )
    assert config.secrets == {"wandb_api_key": "0123456789abcdef"}
    shown = json.dumps(config.to_dict()) + repr(config)
    for secret in ("0123456789abcdef", "fedcba9876543210", ":pw@", '"tok"'):
        assert secret not in shown
    assert config.to_dict()["raw"]["extras"]["wandb_api_key"] == HIDDEN
    assert config.environment["WANDB_API_KEY"] == "fedcba9876543210", "the child needs it"


def test_a_saved_configuration_is_a_configuration(tmp_path: Path) -> None:
    config = read(
        {
            **FLAT,
            "extras": {"notes": "n", "wandb_api_key": "0123456789abcdef"},
            "resources": {"gpus": 1},
            "max_wallclock_minutes": 3,
            "artifacts": {"tensorboard": {"enabled": False}},
            "environment": {"A": "1", "MY_TOKEN": "0123456789"},
        }
    )
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    again = load_worker_config(tmp_path / "config.json", env={})
    assert dataclasses.replace(again, raw={}) == dataclasses.replace(config, raw={}, secrets={}, environment={"A": "1"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"\xff\xfe\xff", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b"", 'write an object such as {"algo": "ppo"'),
        (b"algo: ppo\nenv_id: CartPole-v1\n", 'write an object such as {"algo": "ppo"'),
        (b"apiVersion: mosaic.dev/v1alpha1\nkind: CleanRLRun\n", "kubectl apply -f"),
        (b'{"kind":"CleanRLRun","metadata":{"name":"a"},"spec":{"algo":"ppo"}}', "kubectl apply -f"),
        (b'{"extras": {"algo_params": {"x": 1e999}}}', "finite"),
        (b'{"env_id": "\\ud800"}', "env_id"),
    ],
)
def test_files_that_hold_no_configuration(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        load_worker_config(tmp_path / "c.json")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        load_worker_config(tmp_path)


def test_the_same_thing_said_twice_differently_is_an_error() -> None:
    assert "give it once" in faults({**FLAT, "seed": 1, "extras": {"algo_params": {"seed": 2}}})[0]
    assert read({**FLAT, "seed": 1, "extras": {"algo_params": {"seed": 1}}}).seed == 1
    assert read({**FLAT, "extras": {"algo_params": {"seed": 4}}}).seed == 4
    assert read({**FLAT, "extras": {"seed": 4}}).seed == 4
    for seed in (4, 4.0, "4", "4.0"):
        assert read({**FLAT, "seed": 4, "extras": {"algo_params": {"seed": seed}}}).seed == 4
    assert "extras.seed: is 2, but seed is 1" in faults({**FLAT, "seed": 1, "extras": {"seed": 2}})[0]


def test_a_flag_wins_over_the_same_thing_among_the_parameters() -> None:
    extras = {"seed": 2, "algo_params": {"total-timesteps": 70, "gamma": 0.9}}
    config = read({**FLAT, "total_timesteps": None, "extras": extras}, seed="3", total_timesteps="50")
    assert (config.seed, config.total_timesteps, config.extras) == (3, 50, {"algo_params": {"gamma": 0.9}})


def test_tensorboard_stays_in_the_runs_folder() -> None:
    assert "extras.tensorboard_dir" in faults({**FLAT, "extras": {"tensorboard_dir": "../../etc"}})[0]
