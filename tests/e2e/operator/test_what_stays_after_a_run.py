"""On a real node: requirement sets are looked after before training, TensorBoard answers before and after the end, and a dry
run says what would run."""

from __future__ import annotations

import json
from typing import Any

CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "wheels"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Mi"}}},
}
FETCH = """
import json, time, urllib.request
for _ in range(60):
    try:
        page = urllib.request.urlopen({url!r}, timeout=10).read().decode()
        runs = json.loads(urllib.request.urlopen({url!r} + "data/runs", timeout=10).read())
        if runs:
            break
    except OSError as error:
        print("# not yet:", error)
    time.sleep(1)
print(json.dumps({{"runs": runs, "title": "TensorBoard" in page}}))
"""


def board(status: dict[str, Any]) -> dict[str, Any]:
    return dict((status.get("analytics") or {}).get("tensorboard") or {})


def fetched(runs: Any, url: str) -> dict[str, Any]:
    """What a pod of the same namespace gets from a TensorBoard."""
    return dict(json.loads(runs.python(FETCH.format(url=url)).splitlines()[-1]))


def test_tensorboard_answers_at_one_address_before_and_after_the_end(runs: Any) -> None:
    runs.kubectl("create", "-f", "-", stdin=json.dumps(CLAIM))
    runs.apply("shown", requirements=["atari"], artifacts={"tensorboard": {"serve": "always"}})
    live = runs.reach("shown", lambda status: bool(board(status).get("url")))
    installed = runs.kubectl("logs", live["podName"], "-c", "requirements")
    assert "the image has all of atari" in installed
    assert live["fsmState"] in ("HSHK", "RDY", "EXEC")
    first = fetched(runs, board(live)["url"])
    assert first["title"]
    runs.change("shown", cancel=True)
    runs.reach("shown", lambda status: status["fsmState"] == "TERM")
    runs.freed("shown")
    after = runs.reach("shown", lambda status: bool(board(status).get("url")))
    assert board(after)["url"] == board(live)["url"]
    assert fetched(runs, board(after)["url"])["runs"] == first["runs"]
    runs.change("shown", ttlSecondsAfterFinished=0)
    runs.reach("shown", lambda status: board(status).get("reason") == "Removed")
    assert runs.kubectl("get", "deployments,services", "-o", "name") == ""


def test_a_dry_run_says_what_would_run_and_leaves_no_claim(runs: Any) -> None:
    runs.apply("dry", dryRun=True, totalTimesteps=1000)
    runs.kubectl("wait", "cleanrlrun/dry", "--for=condition=Complete", "--timeout=120s")
    status = runs.status("dry")
    assert (status["outcome"], status["reason"]) == ("completed", "DryRun")
    assert "CartPole-v1" in status["message"]
    assert [each["to"] for each in status["transitions"]][-1] == "TERM"
    assert "EXEC" not in [each["to"] for each in status["transitions"]]
    assert runs.kubectl("get", "pvc", "-o", "name") == ""
