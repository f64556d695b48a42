"""A peer that learned less often, or from smaller batches, would be no peer."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[3]
SAME = {
    "learning_rate": "learning_rate",
    "batch_size": "batch_size",
    "buffer_size": "buffer_size",
    "n_steps": "num_steps",
    "n_epochs": "update_epochs",
    "train_freq": "train_frequency",
    "target_update_interval": "target_network_frequency",
    "policy_delay": "policy_frequency",
    "ent_coef": "ent_coef",
}
"""The peer's options and our flags."""
ALWAYS = {"train_freq": 1}
"""What our algorithms that learn at every step have no flag for."""
OWN = {"learning_starts"}
"""The benchmark's, for both: learning is what is measured."""


def defaults(algo: str) -> dict[str, Any]:
    schemas = json.loads((PROJECT / "cleanrl_worker" / "schemas.json").read_text())
    return {field["name"].replace("-", "_"): field["default"] for field in schemas["algorithms"][algo]["fields"]}


def test_a_peer_has_our_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "tests" / "benchmarks"))
    peers = importlib.import_module("peer_sb3").PEERS
    assert peers
    for algo, peer in peers.items():
        ours = defaults(algo)
        assert peer.envs == ours.get("num_envs", 1), algo
        for option in peer.options.keys() - OWN:
            if peer.name == "PPO" and option == "batch_size":
                expected = peer.envs * ours["num_steps"] // ours["num_minibatches"]
            else:
                expected = ours[SAME[option]] if SAME[option] in ours else ALWAYS[option]
            assert peer.options[option] == expected, (algo, option)
