"""Every manifest in examples/ is taken by a real API server as it stands."""

from __future__ import annotations

import functools
import operator
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import Cluster

PROJECT = Path(__file__).parents[3]
EXAMPLES = PROJECT / "examples"
FOREIGN = {"argoproj.io", "kueue.x-k8s.io"}
"""Groups whose resources are somebody else's to install: of those documents only the syntax is checked."""
FILES = sorted(path for path in EXAMPLES.rglob("*.yaml") if "kustomize" not in path.parts)


def own_documents(text: str) -> list[dict[str, object]]:
    documents = [document for document in yaml.safe_load_all(text) if document]
    return [document for document in documents if document["apiVersion"].partition("/")[0] not in FOREIGN]


@pytest.fixture(scope="module")
def server(api_server: Cluster) -> Cluster:
    api_server.kubectl("apply", "-f", str(PROJECT / "crds"))
    deadline = time.monotonic() + 60
    while api_server.kubectl("get", "cleanrlruns", check=False).returncode != 0:
        assert time.monotonic() < deadline, "the API server did not take the CRD up"
        time.sleep(0.2)
    api_server.kubectl("create", "namespace", "team-a", check=False)
    return api_server


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_accepted(path: Path, server: Cluster) -> None:
    documents = own_documents(path.read_text())
    if documents:
        server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(documents))


@pytest.mark.parametrize("folder", ["base", "overlays/team-a"])
def test_kustomize_builds_what_is_accepted(folder: str, server: Cluster) -> None:
    built = server.kubectl("kustomize", str(EXAMPLES / "kustomize" / folder)).stdout
    assert own_documents(built), "the folder builds no run"
    server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=built)


NAMED = {
    "run": ("from", "run"),
    "phases": ("script", "configMapRef", "name"),
    "wandb": ("artifacts", "wandb", "apiKeySecretRef", "name"),
    "data": ("artifacts", "storage", "claimName"),
    "account": ("podTemplate", "serviceAccountName"),
    "pull": ("podTemplate", "imagePullSecrets", 0, "name"),
    "table": ("podTemplate", "volumes", 0, "configMap", "name"),
    "extra": ("podTemplate", "volumes", 1, "persistentVolumeClaim", "claimName"),
}


def test_kustomize_changes_every_name_that_a_run_holds(tmp_path: Path, server: Cluster) -> None:
    kinds = {"run": "CleanRLRun", "phases": "ConfigMap", "table": "ConfigMap", "wandb": "Secret", "pull": "Secret"}
    kinds |= {"data": "PersistentVolumeClaim", "extra": "PersistentVolumeClaim", "account": "ServiceAccount"}
    named: list[dict[str, Any]] = [
        {
            "apiVersion": "mosaic.dev/v1alpha1" if kind == "CleanRLRun" else "v1",
            "kind": kind,
            "metadata": {"name": name},
        }
        for name, kind in kinds.items()
    ]
    spec = {
        "image": "registry/worker:1",
        "from": {"run": "run"},
        "script": {"configMapRef": {"name": "phases"}},
        "artifacts": {"wandb": {"apiKeySecretRef": {"name": "wandb"}}, "storage": {"claimName": "data"}},
        "podTemplate": {
            "serviceAccountName": "account",
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [{"configMap": {"name": "table"}}, {"persistentVolumeClaim": {"claimName": "extra"}}],
        },
    }
    named[0]["spec"] = spec
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(named))
    (tmp_path / "references.yaml").write_text((EXAMPLES / "kustomize" / "base" / "references.yaml").read_text())
    images = [{"name": "registry/worker", "newTag": "2"}]
    asked = {"resources": ["all.yaml"], "configurations": ["references.yaml"], "namePrefix": "a-", "images": images}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(asked))
    built = yaml.safe_load_all(server.kubectl("kustomize", str(tmp_path)).stdout)
    (run,) = [document["spec"] for document in built if document["kind"] == "CleanRLRun"]
    assert run["image"] == "registry/worker:2"
    for name, path in NAMED.items():
        assert functools.reduce(operator.getitem, path, run) == f"a-{name}", path


def test_every_mode_has_an_example() -> None:
    runs = [
        document for path in FILES for document in own_documents(path.read_text()) if document["kind"] == "CleanRLRun"
    ]
    modes = {run["spec"].get("mode", "train") for run in runs}  # type: ignore[attr-defined]
    assert modes == {"train", "curriculum", "resume", "policyEval", "interactive", "script"}
