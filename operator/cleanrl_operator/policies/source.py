"""Whether the run that `from.run` names can be started from: its status has to vouch for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cleanrl_operator.api.spec import Mode
from cleanrl_operator.api.status import State
from cleanrl_operator.run import Run, UnreadableRun


@dataclass(frozen=True)
class Source:
    """The source run, or the sentence that says why there is none: for good, or not yet."""

    run: Run | None = None
    fault: str = ""
    pending: str = ""


def judge(run: Run, body: Mapping[str, Any] | None) -> Source:
    """Judge the object that `from.run` names; None when the API server has no such run in the namespace."""
    named = run.spec.from_
    if named is None or named.run is None:
        return Source()
    name = named.run
    if body is None:
        return Source(fault=f"from.run names {name}, and there is no such run in this namespace")
    try:
        source = Run.parse(body)
    except UnreadableRun as error:
        return Source(fault=f"from.run names {name}, which can't be read: {error}")
    if source.uid == run.uid:
        return Source(fault="from.run names the run itself: name an earlier one")
    if run.spec.mode != Mode.INTERACTIVE and source.spec.env_id != run.spec.env_id:
        return Source(fault=f"{name} was trained on {source.spec.env_id}, not on {run.spec.env_id}")
    if source.spec.algo != run.spec.algo:
        return Source(fault=f"{name} was trained with {source.spec.algo}, not with {run.spec.algo}")
    found = source.status.checkpoint
    if found is not None and found.sha256 is not None:
        return Source(run=source)
    if source.status.fsm_state == State.TERM:
        why = "has ended without a checkpoint" if found is None else "has ended with a checkpoint of unknown digest"
        return Source(fault=f"from.run names {name}, which {why}: there is nothing to start from")
    return Source(pending=f"Waiting for the first checkpoint of {name}, which from.run names.")
