"""Which flags the algorithm gets, in which order and spelling, and which extras are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker import flags
from cleanrl_worker.registry import Algorithm, parse, resolve


@pytest.fixture(autouse=True)
def schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small algorithm with one flag of each kind."""

    def entry(name: str, kind: str, default: Any, **more: Any) -> dict[str, Any]:
        base = {"name": name, "type": kind, "default": default, "help": "", "optional": False, "runtime_only": False}
        return {**base, **more}

    fields = [
        entry("env_id", "str", "E-v0"),
        entry("total_timesteps", "int", 10),
        entry("seed", "int", 1),
        entry("cuda", "bool", True),
        entry("track", "bool", False),
        entry("num_envs", "int", 4),
        entry("learning_rate", "float", 1e-3),
        entry("anneal_lr", "bool", True),
        entry("target_kl", "float", None, optional=True),
        entry("network", "str", "separate", choices=["separate", "shared"]),
        entry("device_ids", "list[int]", []),
        entry("wandb_entity", "str", None, optional=True),
        entry("procedural_generation", "bool", True),
    ]
    jax = [field for field in fields if field["name"] not in ("cuda", "procedural_generation")]
    known = {"algorithms": {"ppo": {"fields": fields}, "dqn_jax": {"fields": jax}}}
    monkeypatch.setattr(flags, "load_schemas", lambda: known)


def build(algorithm: str | Algorithm = "ppo", **options: Any) -> list[str]:
    given = {"env_id": "E-v0", "total_timesteps": 5, "seed": None, "track": False, "cuda": False, "extras": {}}
    return flags.build(parse(algorithm) if isinstance(algorithm, str) else algorithm, **{**given, **options})


def test_the_order_is_fixed() -> None:
    extras = {"wandb_entity": "me", "algo_params": {"num-envs": 8, "anneal_lr": False}, "tensorboard_dir": "tb"}
    assert build(seed=0, track=True, cuda=True, extras=extras) == [
        *("--env-id=E-v0", "--total-timesteps=5", "--seed=0", "--track", "--cuda"),
        *("--num-envs=8", "--no-anneal-lr", "--wandb-entity=me"),
    ]


def test_no_gpu_is_said_where_the_flag_exists() -> None:
    assert "--no-cuda" in build()
    assert not any("cuda" in word for word in build("dqn_jax"))
    assert not any("cuda" in word for word in build("dqn_jax", cuda=True))
    assert "--no-cuda" in build("cleanrl.ppo"), "upstream's script of the same name has the same flag"
    assert not any("cuda" in word for word in build("plugin.x"))
    assert "--no-cuda" in build("plugin.x", extras={"cuda": False})
    assert "--cuda" in build("plugin.x", cuda=True)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"learning_rate": 2.5e-4}, ["--learning-rate=0.00025"]),
        ({"learning_rate": 1}, ["--learning-rate=1"]),
        ({"num_envs": 8.0}, ["--num-envs=8"]),
        ({"num_envs": "8"}, ["--num-envs=8"]),
        ({"anneal_lr": 0}, ["--no-anneal-lr"]),
        ({"anneal_lr": "true"}, ["--anneal-lr"]),
        ({"target_kl": None}, []),
        ({"network": ""}, []),
        ({"device_ids": [0, 1]}, ["--device-ids", "0", "1"]),
        ({"seed": 1, "cuda": True, "track": True}, []),
    ],
)
def test_values_are_written_by_their_type(value: dict[str, Any], words: list[str]) -> None:
    assert build(extras={"algo_params": value})[3:] == words


def test_a_stranger_gets_what_it_is_given() -> None:
    extras = {"algo_params": {"a_b": True, "c": False, "d": [1, "x"], "e": {"f": 1}}, "g": 1.5, "h": None, "i": " "}
    assert build("plugin.x", extras=extras)[2:] == ["--a-b", "--no-c", "--d=1", "--d=x", "--g=1.5"]


def test_a_list_goes_to_tyro_as_tyro_hears_it(tmp_path: Path) -> None:
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl" / "mine.py").write_text("import tyro\n")
    script = resolve("cleanrl.mine", str(tmp_path))
    assert build(script, extras={"algo_params": {"layers": [64, 32]}})[2:] == ["--layers", "64", "32"]


def test_an_argparse_script_is_spoken_to_in_its_way() -> None:
    script = replace(parse("cleanrl.ppo_pettingzoo_ma_atari"), options={})
    words = build(script, track=True, extras={"cuda": False, "algo_params": {"x": True}})
    assert words[2:] == ["--track=True", "--cuda=False", "--x=True"]


OWN_PARSER = """
import argparse as ap
def parse():
    p = ap.ArgumentParser()
    p.add_argument("-e", "--gym-id", type=str)
    p.add_argument("--total_timesteps", type=int)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--n_envs", type=int)
    p.add_argument("--save-model", action="store_true")
    p.add_argument("--no_render", action="store_false", dest="render")
    p.add_argument("--anneal_lr", action=ap.BooleanOptionalAction)
    p.add_argument("--cuda", type=lambda x: bool(strtobool(x)))
    p.add_argument("--sizes", nargs="+", type=int)
    p.add_argument("--layer", action="append")
    return p.parse_args()
"""


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        ({"n_envs": 3, "n-envs": 4}, ["--n_envs=3", "--n_envs=4"]),
        ({"save_model": True, "no_render": True}, ["--save-model", "--no_render"]),
        ({"save_model": False, "no_render": False}, []),
        ({"anneal_lr": True}, ["--anneal_lr"]),
        ({"anneal-lr": False}, ["--no-anneal_lr"]),
        ({"sizes": [64, 32], "layer": ["a", "b"]}, ["--sizes", "64", "32", "--layer=a", "--layer=b"]),
        ({"elsewhere_defined": True}, ["--elsewhere-defined=True"]),
    ],
)
def test_flags_are_spelt_as_the_script_itself_spells_them(
    tmp_path: Path, extras: dict[str, Any], words: list[str]
) -> None:
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl" / "own.py").write_text(OWN_PARSER)
    (tmp_path / "cleanrl" / "flags_of_all.py").write_text(OWN_PARSER)
    (tmp_path / "cleanrl" / "another.py").write_text("from flags_of_all import parse\n")
    for name in ("own", "another"):
        script = resolve(f"cleanrl.{name}", str(tmp_path))
        built = build(script, seed=3, extras={"cuda": False, "algo_params": extras})
        assert built[:4] == ["--gym-id=E-v0", "--total_timesteps=5", "--seed=3", "--cuda=False"]
        assert built[4:] == words


def test_a_script_of_a_known_name_is_given_no_flag_that_it_has_not(tmp_path: Path) -> None:
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl" / "ppo.py").write_text(OWN_PARSER.replace("--cuda", "--device"))
    for cuda in (False, True):
        words = build(resolve("cleanrl.ppo", str(tmp_path)), cuda=cuda)
        assert words == ["--gym-id=E-v0", "--total_timesteps=5"]


def test_a_script_that_reads_its_flags_with_tyro_may_import_others_that_use_argparse(tmp_path: Path) -> None:
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl" / "helper.py").write_text(OWN_PARSER)
    (tmp_path / "cleanrl" / "own.py").write_text("import tyro\nimport helper\n")
    assert build(resolve("cleanrl.own", str(tmp_path)), extras={"algo_params": {"n_envs": 3}})[2:] == ["--n-envs=3"]


def test_procedural_generation_is_a_flag_only_where_the_algorithm_has_it() -> None:
    """Forms send it with every algorithm, and it reaches every run by the environment."""
    for extras in ({"algo_params": {"procedural_generation": False}}, {"procedural_generation": False}):
        assert build(extras=extras)[-1] == "--no-procedural-generation"
        assert flags.check(parse("dqn_jax"), extras) == []
        for algorithm in ("dqn_jax", "cleanrl.ppo", "cleanrl.dqn_jax", "cleanrl.unheard_of"):
            assert not any("procedural" in word for word in build(algorithm, extras=extras))


def test_a_foreign_script_hears_what_was_given_and_not_what_we_made_of_it() -> None:
    extras = {"algo_params": {"num_envs": "four", "anneal_lr": "sometimes", "target_kl": "none"}}
    assert build("cleanrl.ppo", extras=extras)[3:] == ["--num-envs=four", "--anneal-lr=sometimes", "--target-kl=none"]


def test_the_workers_own_keys_are_never_passed_on() -> None:
    assert build(extras=dict.fromkeys(flags.WORKER_KEYS - {"algo_params"}, "x"))[2:] == ["--no-cuda"]


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        ({"algo_params": {"learning_rat": 1}}, "did you mean learning_rate"),
        ({"tensorbord_dir": "x"}, "did you mean tensorboard_dir"),
        ({"algo_params": {"num_envs": 1.5}}, "expected a whole number, got 1.5"),
        ({"algo_params": {"num_envs": True}}, "expected a whole number, got true"),
        ({"algo_params": {"learning_rate": "fast"}}, 'expected a number, got "fast"'),
        ({"algo_params": {"anneal_lr": 2}}, "expected true or false, got 2"),
        ({"algo_params": {"network": "both"}}, "expected one of separate, shared"),
        ({"algo_params": {"network": {}}}, "expected text"),
        ({"algo_params": {"device_ids": [0, "x"]}}, "expected a whole number"),
        ({"algo_params": {"network": "a\nb"}}, "line break"),
        ({"algo_params": {"a b": 1}}, "not a name"),
    ],
)
def test_what_the_algorithm_would_refuse_is_refused_first(extras: dict[str, Any], words: str) -> None:
    problems = flags.check(parse("ppo"), extras)
    assert len(problems) == 1
    assert problems[0].startswith("extras.")
    assert words in problems[0]


def test_fine_extras_pass() -> None:
    params = {"learning-rate": "1e-3", "anneal_lr": "no", "target_kl": None, "procedural_generation": True}
    assert flags.check(parse("ppo"), {"algo_params": params, "notes": "two\nlines"}) == []
    assert flags.check(parse("plugin.x"), {"anything": 1}) == []


@pytest.mark.parametrize("word", [None, "a\nb", "a\rb", "a\0b"])
def test_a_command_is_made_of_plain_words(word: Any) -> None:
    with pytest.raises(ValueError, match="Command component at index 1 "):
        flags.check_command(["python", word])
    assert flags.check_command(["python", 3]) == ["python", "3"]


def test_a_default_is_known_where_the_schema_is() -> None:
    assert flags.default_of(parse("ppo"), "num_envs") == 4
    assert flags.default_of(parse("plugin.x"), "num_envs") is None
    assert flags.default_of(Algorithm("x", "own", "m", schema_name="x"), "num_envs") is None
