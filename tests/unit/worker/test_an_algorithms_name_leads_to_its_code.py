"""The registry, plug-ins, upstream checkouts, and the worker's own description."""

from __future__ import annotations

import importlib.metadata
import inspect
from pathlib import Path

import pytest

import cleanrl_worker
from cleanrl_worker import registry, runtime
from cleanrl_worker.registry import UnknownAlgorithmError, parse, resolve, upstream_script


def test_the_registry_holds_all_of_them() -> None:
    assert len(registry.DEFAULT_ALGO_REGISTRY) == 34
    assert runtime.DEFAULT_ALGO_REGISTRY is registry.DEFAULT_ALGO_REGISTRY
    assert registry.DEFAULT_ALGO_REGISTRY["ppo_gru"] == "cleanrl_worker.algorithms.ppo_gru"
    assert all(module == f"cleanrl_worker.algorithms.{name}" for name, module in registry.DEFAULT_ALGO_REGISTRY.items())
    with pytest.raises(TypeError):
        registry.DEFAULT_ALGO_REGISTRY["x"] = "y"  # type: ignore[index]


def test_an_own_algorithm() -> None:
    found = resolve("ppo")
    assert (found.kind, found.target, found.foreign) == ("own", "cleanrl_worker.algorithms.ppo", False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pppo", "did you mean ppo"),
        ("PPO", "did you mean ppo"),
        ("sac", "did you mean sac_atari or sac_continuous_action"),
        ("", "not registered"),
        ("cleanrl.../x", "write cleanrl.<name>"),
        ("cleanrl.a-b", "write cleanrl.<name>"),
        ("plugin.", "not registered"),
    ],
)
def test_names_that_mean_nothing(name: str, words: str) -> None:
    with pytest.raises(UnknownAlgorithmError, match=words):
        parse(name)


def test_a_registered_name_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {**registry.DEFAULT_ALGO_REGISTRY, "sac_atari": "cleanrl_worker.algorithms.none_such"}
    monkeypatch.setattr(registry, "DEFAULT_ALGO_REGISTRY", missing)
    assert parse("sac_atari").kind == "own", "the name is fine"
    with pytest.raises(UnknownAlgorithmError, match=r"has no module cleanrl_worker.algorithms.none_such"):
        resolve("sac_atari")


def test_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint("good", "json:loads", registry.PLUGIN_GROUP),
        importlib.metadata.EntryPoint("gone", "no_such_package.mod", registry.PLUGIN_GROUP),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group else [])
    monkeypatch.setattr(registry, "plugins", registry.plugins.__wrapped__)
    assert resolve("plugin.good").target == "json:loads"
    with pytest.raises(UnknownAlgorithmError, match=r"'no_such_package.mod' is not installed"):
        resolve("plugin.gone")
    with pytest.raises(UnknownAlgorithmError, match=r"did you mean plugin.good"):
        resolve("plugin.god")


def test_upstream_checkouts(tmp_path: Path) -> None:
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl" / "ppo.py").write_text("")
    found = resolve("cleanrl.ppo", str(tmp_path))
    assert (found.target, found.upstream_dir, found.foreign) == ("cleanrl.ppo", tmp_path, True)
    with pytest.raises(UnknownAlgorithmError, match=r"did you mean cleanrl.ppo"):
        resolve("cleanrl.pppo", str(tmp_path))
    with pytest.raises(UnknownAlgorithmError, match="CLEANRL_UPSTREAM_DIR"):
        resolve("cleanrl.ppo", None)
    with pytest.raises(UnknownAlgorithmError, match=r"no CleanRL checkout at .*/cleanrl: name the folder that holds"):
        resolve("cleanrl.ppo", str(tmp_path / "cleanrl"))


def test_upstream_scripts_in_folders_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "cleanrl" / "deep").mkdir(parents=True)
    (tmp_path / "cleanrl" / "deep" / "deep.py").write_text("import argparse\n")
    assert resolve("cleanrl.deep", str(tmp_path)).options == {}
    assert upstream_script(tmp_path, "cleanrl.deep") == tmp_path / "cleanrl" / "deep" / "deep.py"
    (tmp_path / "cleanrl" / "deep.py").write_text("")
    assert upstream_script(tmp_path, "cleanrl.deep") == tmp_path / "cleanrl" / "deep.py"


def test_the_worker_describes_itself() -> None:
    described = cleanrl_worker.get_worker_metadata()
    assert isinstance(described, tuple)
    metadata, capabilities = described
    assert (metadata.name, metadata.version, metadata.upstream_library) == ("CleanRL Worker", "0.1.0", "cleanrl")
    assert len(inspect.signature(type(capabilities)).parameters) == 14
    assert capabilities.worker_type == "cleanrl"
    assert capabilities.supports_pause_resume
    assert capabilities.supports_checkpointing
    assert capabilities.supports_paradigm("sequential")
    assert capabilities.supports_env_family("babyai")
    assert not capabilities.is_multi_agent()


def test_worker_discovery_finds_it() -> None:
    points = [point for point in importlib.metadata.entry_points(group="mosaic.workers") if point.name == "cleanrl"]
    assert points
    assert all(point.load() is cleanrl_worker.get_worker_metadata for point in points)


@pytest.mark.parametrize(
    ("source", "argparse"),
    [
        ("import argparse\n", True),
        ("import os, argparse\n", True),
        ("def main():\n    from argparse import ArgumentParser\n", True),
        ("import argparse\nthis is no Python\n", False),
        ("import argparse\nimport tyro\n", False),
        ("import tyro\n", False),
        ("text = 'import argparse'\n", False),
    ],
)
def test_how_a_script_reads_its_flags(tmp_path: Path, source: str, argparse: bool) -> None:
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl" / "old.py").write_text(source)
    assert (resolve("cleanrl.old", str(tmp_path)).options is not None) is argparse
