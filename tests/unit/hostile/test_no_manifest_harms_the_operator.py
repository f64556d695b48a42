"""A manifest is a tenant's word. Whatever is in it, the operator reads it or says that it can't, and what it makes can be sent.

The API server's schema stands before this; it was another one when an old run was stored, and may be missing.
"""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from cleanrl_operator.api.status import Status
from cleanrl_operator.desired import claim, pod, tensorboard
from cleanrl_operator.facts import Facts
from cleanrl_operator.fsm import decide
from cleanrl_operator.run import Run, UnreadableRun
from cleanrl_operator.settings import Settings
from fuzzing import HOSTILE_JSON, HOSTILE_TEXT, budget
from hypothesis import assume, given
from hypothesis import strategies as st

from cleanrl_protocol.podconfig import BadPodConfig

EXAMPLES = Path(__file__).parents[3] / "examples"
SPECS = [
    body["spec"]
    for path in sorted(EXAMPLES.glob("*.yaml"))
    for body in yaml.safe_load_all(path.read_text())
    if body and body["kind"] == "CleanRLRun"
]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = Settings(worker_image="worker:1", gateway_target="gateway:50055", tensorboard_route="Ingress")

FIELDS = ("mode", "from", "curriculum", "evaluation", "script", "resources", "artifacts", "podTemplate", "extras", "algoParams",
          "checkpoint", "retry", "fastlane", "requirements", "suspend", "pause", "cancel", "maxWallclockMinutes")  # fmt: skip
NEAR = st.sampled_from(
    [None, {}, [], "", "0", "1e400", "10Gi", "-1", "policyEval", "script", "resume", "interactive", [{}], True]
)


@st.composite
def specs(draw: Any) -> Any:
    """An example in which something is another thing, is gone, or is more."""
    spec = copy.deepcopy(draw(st.sampled_from(SPECS)))
    for _ in range(draw(st.integers(0, 3))):
        place = spec
        while isinstance(place, dict) or place:
            if isinstance(place, dict):
                key = draw(st.sampled_from([*place, *FIELDS]) | HOSTILE_TEXT)
            else:
                key = draw(st.integers(0, len(place) - 1))
            inner = place.get(key) if isinstance(place, dict) else place[key]
            if not isinstance(inner, dict | list) or draw(st.booleans()):
                place[key] = copy.deepcopy(draw(HOSTILE_JSON | NEAR))  # what is sampled is always the same object
                break
            place = inner
    return spec


def sendable(body: Any) -> None:
    json.dumps(body, allow_nan=False).encode()


@budget(300)
@given(spec=specs(), annotated=st.none() | HOSTILE_TEXT, labels=st.dictionaries(HOSTILE_TEXT, HOSTILE_TEXT, max_size=2))
def test_any_manifest_is_refused_or_becomes_objects_that_can_be_sent(spec: Any, annotated: Any, labels: Any) -> None:
    metadata = {"namespace": "ns", "name": "run", "uid": "u1", "generation": 1, "resourceVersion": "5", "labels": labels,
                "creationTimestamp": NOW.isoformat()}  # fmt: skip
    if annotated is not None:
        metadata["annotations"] = {"mosaic.dev/dry-run": annotated}
    try:
        stored = json.loads(json.dumps({"metadata": metadata, "spec": spec}, allow_nan=False))
    except ValueError:
        assume(False)  # no API server stores what is no JSON
    try:
        run = Run.parse(stored)
    except UnreadableRun as refusal:
        sendable(str(refusal))
        return
    told = decide(run.spec, Status(), Facts(), NOW, generation=1, run_id=run.run_id)
    sendable(told.status.dump())
    try:
        sendable(pod.build(run, SETTINGS))
    except BadPodConfig as refusal:
        sendable(str(refusal))
    for build in (claim.build, tensorboard.service, tensorboard.deployment, tensorboard.route):
        sendable(build(run, SETTINGS))
