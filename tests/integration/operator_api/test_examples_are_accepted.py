"""Every manifest in examples/ is taken by a real API server as it stands."""

from __future__ import annotations

import time
from pathlib import Path

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


def test_every_mode_has_an_example() -> None:
    runs = [
        document for path in FILES for document in own_documents(path.read_text()) if document["kind"] == "CleanRLRun"
    ]
    modes = {run["spec"].get("mode", "train") for run in runs}  # type: ignore[attr-defined]
    assert modes == {"train", "curriculum", "resume", "policyEval", "interactive", "script"}
