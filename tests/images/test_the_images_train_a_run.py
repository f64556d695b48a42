"""Both images as they are shipped: what is in them, and a run that they carry from the manifest to the end.

`make e2e-images` builds them and runs this; it takes minutes and gigabytes, so CI does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import images
import pytest

from devcluster import Cluster, binaries

PROJECT = Path(__file__).parents[2]
CHART = PROJECT / "helm" / "cleanrl-operator"
SYSTEM, NAMESPACE, RUN = "cleanrl-system", "images", "from-the-images"
ONLY = "image-only"
"""The runtime class whose containers see their image and nothing of this machine."""


def archive(part: str) -> Path:
    path = images.OUTPUT / f"cleanrl-{part}.tar"
    assert path.is_file(), "there is no archive: `make e2e-images` builds it"
    return path


def configuration(part: str) -> dict[str, Any]:
    """The image's own account of how it is to be run."""
    with tarfile.open(archive(part)) as image:
        manifest = json.load(image.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        return dict(json.load(image.extractfile(manifest["Config"]))["config"])  # type: ignore[arg-type]


def bill(part: str) -> set[str]:
    """The distributions that the image's bill of materials names."""
    listed = json.loads(images.file_in(archive(part), "usr/share/cleanrl/sbom.cdx.json"))
    assert listed["bomFormat"] == "CycloneDX"
    return {each["name"].lower().replace("_", "-") for each in listed["components"]}


@pytest.mark.parametrize("part", ["operator", "worker"])
def test_an_image_says_what_it_is_and_runs_as_nobody(part: str) -> None:
    config = configuration(part)
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert labels["title"] == f"cleanrl-{part}"
    assert (labels["version"], labels["licenses"]) == (images.version(), "MIT")
    assert len(labels["revision"].removesuffix("-dirty")) == 40
    assert config["User"] == "65532:65532"
    assert bool(config.get("Healthcheck")) == (part == "operator")
    assert "cleanrl-operator" in bill(part), "the bill names our own distribution"


def test_the_operators_image_is_small_and_without_torch() -> None:
    assert images.unpacked(archive("operator")) < 200e6
    assert not bill("operator") & {"torch", "gymnasium", "tensorboard", "numpy"}
    assert {"torch", "gymnasium", "tensorboard", "wandb"} <= bill("worker")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(f"pytest-images-{os.getpid()}", node=True) as made:
        for part in ("operator", "worker"):
            began = time.monotonic()
            made.load_image(archive(part))
            say(f"the {part}'s image is on the node after {time.monotonic() - began:.0f} s")
        yield made


@pytest.mark.timeout(1200)
def test_a_run_trains_to_its_end_in_pods_of_the_images(cluster: Cluster) -> None:
    began = time.monotonic()
    helm(cluster, "install", "cleanrl", str(CHART), "--create-namespace", "--set", f"runtimeClassName={ONLY}")
    cluster.kubectl("rollout", "status", "deployment", "-n", SYSTEM, "--timeout=120s")
    say(f"from helm install to an operator that is ready: {time.monotonic() - began:.1f} s")
    helm(cluster, "test", "cleanrl")
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    spec = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 50_000, "seed": 1}
    spec |= {"podTemplate": {"runtimeClassName": ONLY}}
    manifest = {"apiVersion": "mosaic.dev/v1alpha1", "kind": "CleanRLRun", "metadata": {"name": RUN}, "spec": spec}
    began = time.monotonic()
    cluster.kubectl("create", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(manifest))
    cluster.kubectl("wait", "-n", NAMESPACE, f"crr/{RUN}", "--for=condition=Complete", "--timeout=600s")
    say(f"from the manifest to TERM, 50,000 steps: {time.monotonic() - began:.1f} s")
    status = json.loads(cluster.kubectl("get", "crr", RUN, "-n", NAMESPACE, "-o", "json").stdout)["status"]
    assert [each["to"] for each in status["transitions"]] == ["INIT", "HSHK", "RDY", "EXEC", "TERM"]
    assert status["progress"]["episodicReturn"] > 50, "it learned"
    assert status["analytics"]["manifestDigest"]
    pod = json.loads(cluster.kubectl("get", "pod", status["podName"], "-n", NAMESPACE, "-o", "json").stdout)
    containers = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
    assert {each["image"] for each in containers} == {f"localhost/cleanrl-worker:{images.version()}"}
    assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in containers)


def helm(cluster: Cluster, *arguments: str) -> None:
    environment = {**cluster.client_environment(), "KUBECONFIG": str(cluster.kubeconfig)}
    command = [str(binaries.ensure("helm")), *arguments, "-n", SYSTEM]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert answer.returncode == 0, answer.stderr


def say(text: str) -> None:
    """A figure for whoever watches."""
    sys.stderr.write(f"\n{text}\n")
