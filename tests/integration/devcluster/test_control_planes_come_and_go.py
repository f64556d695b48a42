"""Control planes start side by side, survive the death of any part, and vanish without a trace."""

from __future__ import annotations

import concurrent.futures
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devcluster.api import ApiError
from devcluster.cluster import Cluster
from devcluster.layout import Layout
from devcluster.runner import Runner

Run = Callable[..., subprocess.CompletedProcess[str]]
PARTS = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def pair(devcluster: Run) -> Iterator[tuple[Cluster, Cluster]]:
    """Two clusters, started at the same moment."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for answer in pool.map(lambda name: devcluster("up", "--name", name), ["one", "two"]):
            assert answer.returncode == 0, answer.stderr
    yield Cluster("one"), Cluster("two")
    devcluster("down", "--all")


def pids(cluster: Cluster) -> dict[str, int | None]:
    return {line.name: line.pid for line in cluster.status()}


def test_two_control_planes_share_nothing(pair: tuple[Cluster, Cluster]) -> None:
    one, two = pair
    assert not set(one.spec.ports.values()) & set(two.spec.ports.values())
    assert one.api().create(MAPS, {"metadata": {"name": "mine"}})
    with pytest.raises(ApiError, match="not found"):
        two.api().get(f"{MAPS}/mine")


def test_status_shows_every_part_as_a_table(pair: tuple[Cluster, Cluster], devcluster: Run) -> None:
    answer = devcluster("status", "--name", "one")
    assert answer.returncode == 0, answer.stdout
    rows = [line.split() for line in answer.stdout.splitlines()]
    assert rows[0] == ["COMPONENT", "PID", "MEMORY", "PORT", "HEALTH"]
    assert [row[0] for row in rows[1:-1]] == PARTS
    assert all(row[-1] == "healthy" for row in rows[1:-1])


def test_an_idle_control_plane_is_small(pair: tuple[Cluster, Cluster]) -> None:
    assert sum(line.memory for line in pair[1].status()) < 600 * 2**20


def test_a_second_cluster_of_one_name_is_refused(pair: tuple[Cluster, Cluster], devcluster: Run) -> None:
    before = pids(pair[0])
    answer = devcluster("up", "--name", "one")
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "is up already" in answer.stderr
    again = devcluster("up", "--name", "one", "--reuse")
    assert again.returncode == 0
    setting = shlex.split(again.stdout.splitlines()[1])
    assert setting == ["export", f"KUBECONFIG={pair[0].kubeconfig}"], "it can be copied as it stands"
    other = devcluster("up", "--name", "one", "--reuse", "--audit-log")
    assert other.returncode == 1
    assert "was made with other options" in other.stderr
    assert pids(pair[0]) == before


@pytest.mark.parametrize("part", PARTS)
def test_a_killed_part_comes_back_and_nothing_is_lost(
    part: str, pair: tuple[Cluster, Cluster], devcluster: Run
) -> None:
    cluster = pair[0]
    cluster.api().create(MAPS, {"metadata": {"name": f"before-{part}"}})
    before = pids(cluster)
    victim = before[part]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    wait_for_death(cluster, part)
    assert devcluster("status", "--name", "one").returncode == 1
    answer = devcluster("up", "--name", "one")
    assert answer.returncode == 0, answer.stderr
    after = pids(cluster)
    assert after[part] not in {None, victim}
    if part not in {"etcd", "kube-apiserver"}:  # without those, others may end by themselves
        assert {name: pid for name, pid in after.items() if name != part} == {
            name: pid for name, pid in before.items() if name != part
        }
    assert cluster.api().get(f"{MAPS}/before-{part}")


def test_down_takes_one_and_leaves_the_other(
    pair: tuple[Cluster, Cluster], devcluster: Run, nothing_left: Callable[[str], None]
) -> None:
    answer = devcluster("down", "--name", "one")
    assert answer.returncode == 0, answer.stderr
    nothing_left("one")
    assert pair[1].api().answers("/readyz")
    assert devcluster("down", "--name", "one").returncode == 0  # down already is fine
    answer = devcluster("status", "--name", "one")
    assert answer.returncode == 1
    assert "There is no cluster 'one'" in answer.stderr
    assert devcluster("down", "--name", "two").returncode == 0
    nothing_left("two")


def test_up_recovers_after_the_command_itself_was_killed(devcluster: Run, nothing_left: Callable[[str], None]) -> None:
    command = start_and_wait_for("killed", "kube-apiserver")
    command.kill()
    command.wait()
    answer = devcluster("up", "--name", "killed")
    assert answer.returncode == 0, answer.stderr
    assert len(Cluster("killed").status()) == len(PARTS)
    devcluster("down", "--name", "killed")
    nothing_left("killed")


def test_down_after_the_command_itself_was_killed(devcluster: Run, nothing_left: Callable[[str], None]) -> None:
    command = start_and_wait_for("halfway", "etcd")
    command.kill()
    command.wait()
    assert devcluster("down", "--name", "halfway").returncode == 0
    nothing_left("halfway")


def test_an_interrupted_up_leaves_nothing(state: Path, nothing_left: Callable[[str], None]) -> None:
    command = start_and_wait_for("interrupted", "etcd")
    command.terminate()
    assert command.wait() == 130
    nothing_left("interrupted")
    assert list(state.iterdir()) == []


def start_and_wait_for(name: str, part: str) -> subprocess.Popen[bytes]:
    """`devcluster up` in the moment after it has started a part."""
    command = subprocess.Popen(
        [sys.executable, "-m", "devcluster.cli", "up", "--name", name], stderr=subprocess.DEVNULL
    )
    runner = Runner(Layout.of(name))
    deadline = time.monotonic() + 60
    while runner.process(part) is None:
        assert command.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return command


def wait_for_death(cluster: Cluster, part: str) -> None:
    deadline = time.monotonic() + 10
    while Runner(cluster.layout).process(part) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
