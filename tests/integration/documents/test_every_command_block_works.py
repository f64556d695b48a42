"""What the documents tell a person to type works: every `sh` block is run, page by page, from top to bottom.

A block that can't be run here begins with `# not run by our tests: why`. `make` is run as `make -n`, and such a block is
announced by `<!-- tests: make -n -->`. There is a real API server and no node: runs get their status from this test, and
commands that follow something for ever are cut after a moment. Manifests are offered to the API server in a dry run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fenced import Block, blocks
from foreign import prometheus_operator

from devcluster import Cluster, binaries
from devcluster.cluster import ESTABLISHED

PROJECT = Path(__file__).parents[3]
PAGES = [
    *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "helm/cleanrl-operator/README.md")),
    *sorted((PROJECT / "docs").rglob("*.md")),
]
NOT_RUN = "# not run by our tests: "
DRY_MAKE = "<!-- tests: make -n -->"
CRD, SYSTEM = "cleanrlruns.mosaic.dev", "cleanrl-system"
RUN_ID = "01JD0000000000000000000000"
KUBECTL = """#!/usr/bin/env bash
case " $* " in
    *" -w "*|*" logs "*" -f "*) timeout 2 {kubectl} "$@" || [ $? = 124 ] ;;
    *) exec {kubectl} "$@" ;;
esac
"""


def shell_blocks() -> list[Any]:
    found = [page for page in PAGES if any(block.language in ("sh", "bash") for block in blocks(page))]
    return [pytest.param(page, id=str(page.relative_to(PROJECT))) for page in found]


def test_every_shell_block_is_run_or_says_why_not() -> None:
    for block in (block for page in PAGES for block in blocks(page) if block.language in ("sh", "bash")):
        where = f"{block.page.relative_to(PROJECT)}:{block.line}"
        if block.text.startswith("# not"):
            assert len(block.text.splitlines()[0]) > len(NOT_RUN) + 10, f"{where}: say why it is not run"
            assert block.text.startswith(NOT_RUN), where
        uses_make = any(line.startswith("make ") for line in block.text.splitlines())
        assert uses_make == (block.before == DRY_MAKE), f"{where}: a block with make is announced by {DRY_MAKE}"


@pytest.mark.parametrize("page", shell_blocks())
def test_the_commands_of_a_page_work(
    page: Path, server: Cluster, shell: dict[str, str], finished_run: Path, tmp_path: Path
) -> None:
    place = workplace(tmp_path / "work", finished_run)
    with statuses(server), leaving_nothing(server):
        for block in blocks(page):
            if block.language not in ("sh", "bash") or block.text.startswith(NOT_RUN):
                continue
            check = ["-n"] if block.text.startswith("#!") else []
            answer = subprocess.run(
                ["bash", "-euo", "pipefail", *check, "-c", block.text],
                cwd=place,
                env=shell,
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=240,
            )
            assert answer.returncode == 0, (
                f"{page.relative_to(PROJECT)}:{block.line}\n{block.text}\n{answer.stdout[-2000:]}{answer.stderr[-3000:]}"
            )


def test_manifests_and_settings_in_the_documents_are_accepted(server: Cluster) -> None:
    runs = []
    for page in PAGES:
        for block in blocks(page):
            if block.language == "json":
                json.loads(block.text)
            if block.language == "yaml":
                runs += [
                    run for document in yaml.safe_load_all(block.text) if (run := as_run(document, block, len(runs)))
                ]
    assert len(runs) > 30, "each algorithm's page has one"
    server.kubectl(
        "create", "--dry-run=server", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": runs})
    )


def as_run(document: Any, block: Block, number: int) -> dict[str, Any] | None:
    """The run that a snippet shows, made whole; None for what is something else."""
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict) or "algo" not in spec:
        return None
    whole = {"totalTimesteps": 1000, **spec}
    metadata = {
        "name": f"snippet-{number}",
        "namespace": "default",
        "annotations": {"from": f"{block.page.name}:{block.line}"},
    }
    return {"apiVersion": "mosaic.dev/v1alpha1", "kind": "CleanRLRun", "metadata": metadata, "spec": whole}


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A control plane of its own: the documents install the chart under its usual name."""
    with Cluster(f"pytest-documents-{os.getpid()}") as cluster:
        listed = {"apiVersion": "v1", "kind": "List", "items": prometheus_operator()}
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(listed))
        cluster.kubectl("apply", "-f", str(PROJECT / "crds"))
        cluster.kubectl("wait", ESTABLISHED, "crd", "--all", "--timeout=30s")
        yield cluster


@pytest.fixture
def shell(server: Cluster, tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has activated the virtual environment and points to the cluster."""
    tools = tmp_path / "tools"
    tools.mkdir()
    programs = binaries.ensure_many(["kubectl", "helm"])
    scripts = {
        "kubectl": KUBECTL.format(kubectl=programs["kubectl"]),
        "helm": f'#!/bin/sh\nexec {programs["helm"]} "$@"\n',
        "make": f'#!/bin/sh\nexec {shutil.which("make")} -n -C {PROJECT} "$@"\n',
    }
    for name, text in scripts.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return {
        **server.client_environment(),
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(server.kubeconfig),
        "HOME": str(tmp_path),
        "CLAIM": str(tmp_path / "work" / "claim"),
        "RUN_ID": RUN_ID,
    }


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run that has ended."""
    folder = tmp_path_factory.mktemp("trained")
    train = ["--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "1024", "--run-id", RUN_ID]
    command = [sys.executable, "-m", "cleanrl_worker.cli", *train, "--run-dir", str(folder / RUN_ID)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / RUN_ID


def workplace(place: Path, finished_run: Path) -> Path:
    """A clone to stand in, whose results go elsewhere, with a claim that holds a finished run."""
    place.mkdir()
    for name in ("helm", "examples", "crds", "docs", ".venv"):
        (place / name).symlink_to(PROJECT / name)
    small = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1024, "run_id": "from-a-file"}
    (place / "run.json").write_text(json.dumps(small))
    shutil.copytree(finished_run, place / "claim" / "runs" / RUN_ID, symlinks=True)
    return place


@contextlib.contextmanager
def statuses(server: Cluster) -> Iterator[None]:
    """Stands in for operator and node: whoever applies a run finds it ready and complete."""
    over = threading.Event()
    status = {"fsmState": "TERM", "outcome": "completed", "message": "completed", "conditions": []}
    for kind in ("Ready", "Complete"):
        condition = {"type": kind, "status": "True", "reason": "Completed", "message": "", "observedGeneration": 1}
        status["conditions"].append({**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"})  # type: ignore[attr-defined]

    def keep() -> None:
        while not over.wait(0.5):
            listed = json.loads(server.kubectl("get", "cleanrlruns", "-A", "-o", "json").stdout)["items"]
            for run in (run for run in listed if not run.get("status")):
                place = ["-n", run["metadata"]["namespace"], run["metadata"]["name"]]
                patch = ["--subresource=status", "--type=merge", "-p", json.dumps({"status": status})]
                server.kubectl("patch", "cleanrlrun", *place, *patch, check=False)  # it may have been deleted meanwhile

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


@contextlib.contextmanager
def leaving_nothing(server: Cluster) -> Iterator[None]:
    """Each page begins without a release, and with the run that pages speak of."""
    owner = ["meta.helm.sh/release-name=cleanrl", f"meta.helm.sh/release-namespace={SYSTEM}"]
    server.kubectl("label", "crd", CRD, "app.kubernetes.io/managed-by=Helm", "--overwrite")
    server.kubectl("annotate", "crd", CRD, *owner, "--overwrite")  # so that helm takes it for what a release left
    server.kubectl("apply", "-f", str(PROJECT / "examples" / "ppo-cartpole.yaml"))
    try:
        yield
    finally:
        environment = {**server.client_environment(), "KUBECONFIG": str(server.kubeconfig)}
        uninstall = [binaries.ensure("helm"), "uninstall", "cleanrl", "-n", SYSTEM, "--ignore-not-found", "--wait"]
        subprocess.run(uninstall, env=environment, check=True, capture_output=True)
        server.kubectl("delete", "cleanrlruns", "--all", "-n", "default")
