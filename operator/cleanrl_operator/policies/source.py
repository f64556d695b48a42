"""Whether the run that `from.run` names can be started from: its status has to vouch for a checkpoint.

Once it has, the run that starts from it remembers what it was given. A source that is deleted later, or replaced by another run
of its name, takes nothing from it: its data may well be there still.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from cleanrl_operator.api.spec import Mode
from cleanrl_operator.api.status import SourceStatus, State
from cleanrl_operator.run import Run, UnreadableRun

PATIENCE = timedelta(seconds=20)
"""So long after it was accepted a run waits for one that is not there: who applies both at once does not choose their order."""


@dataclass(frozen=True)
class Source:
    """What to start from, or the sentence that says why there is nothing: for good, or not yet."""

    found: SourceStatus | None = None
    fault: str = ""
    pending: str = ""


def judge(run: Run, body: Mapping[str, Any] | None, now: datetime) -> Source:
    """Judge the object that `from.run` names; None when the API server has no such run in the namespace."""
    named = run.spec.from_
    if named is None or named.run is None:
        return Source()
    name, known = named.run, run.status.source
    if known is not None and (body is None or body["metadata"]["uid"] != known.run_uid):
        return Source(found=known)
    if body is None:
        missing = f"from.run names {name}, and there is no such run in this namespace"
        is_new = now < (run.status.started_at or now) + PATIENCE
        return Source(pending=f"{missing} yet.") if is_new else Source(fault=missing)
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
    if (offered := vouched_for(source)) is not None:
        return Source(found=offered)
    if source.status.fsm_state == State.TERM:
        none = source.status.checkpoint is None
        why = "has ended without a checkpoint" if none else "has ended with a checkpoint of unknown digest"
        return Source(fault=f"from.run names {name}, which {why}: there is nothing to start from")
    return Source(pending=f"Waiting for the first checkpoint of {name}, which from.run names.")


def vouched_for(source: Run) -> SourceStatus | None:
    """What this run offers to those that start from it; None while its status holds no checkpoint with a digest."""
    found = source.status.checkpoint
    if found is None or found.sha256 is None:
        return None
    return SourceStatus(
        run_uid=source.uid,
        claim_name=source.claim_name,
        path=source.folder,
        checkpoint=found.path,
        step=found.step,
        sha256=found.sha256,
    )
