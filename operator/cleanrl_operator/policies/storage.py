"""Whether the run's claim still holds what the run has written: another claim of its name would be empty."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from cleanrl_operator.api.status import MAX_TRANSITIONS, State, Status

A_SECOND = timedelta(seconds=1)


def lost(status: Status, name: str, claim: Mapping[str, Any] | None) -> str:
    """Why the data is not to be had from this claim, the one of that name as it is now; empty when it is, or there is none.

    Until a container has run nothing was written: a claim may be made anew in another class, as often as it takes.
    """
    known, ran = status.claim_uid, first_ran(status)
    never_ran = ran is None and len(status.transitions or []) < MAX_TRANSITIONS
    if known is None or never_ran:
        return ""
    if claim is None:
        return f"Claim {name}, which held the run's data, is gone. Start a new run to train from scratch."
    metadata = claim["metadata"]
    # The pod that was the first to run may have waited while the claim was made anew. None can be as long as a pod uses it.
    # The API server tells whole seconds: the claim was there at the end of the one that it names.
    was_there = ran is not None and datetime.fromisoformat(metadata["creationTimestamp"]) + A_SECOND <= ran
    if metadata["uid"] != known and not was_there:
        return f"Claim {name} is not the one that held the run's data. Start a new run to train from scratch."
    if "deletionTimestamp" in metadata:
        return f"Claim {name}, which holds the run's data, is being deleted."
    if (claim.get("status") or {}).get("phase") == "Lost":
        return f"Claim {name} has lost its volume, and with it the run's data."
    return ""


def first_ran(status: Status) -> datetime | None:
    """When a container of the run began to run for the first time, as far as the status remembers."""
    began = [step.at for step in status.transitions or [] if step.to == State.HSHK]
    return min(filter(None, (*began[:1], status.exec_started_at)), default=None)
