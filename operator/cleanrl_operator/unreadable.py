"""What is said of a run that the models can't read, for example one that was stored under an older schema.

Nothing is known of such a run but its bare object, so nothing of it is judged: its state stays as it is, and two conditions
tell people and GitOps tools that nobody is looking after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

REASON = "Unreadable"


def conditions(body: Mapping[str, Any], fault: str, now: datetime) -> list[dict[str, Any]] | None:
    """The run's conditions with the truth in them; None when they say it already."""
    generation = body["metadata"].get("generation", 1)
    known = [item for item in (body.get("status") or {}).get("conditions") or [] if isinstance(item, dict)]
    text = f"The operator can't read this run and leaves it alone: {fault}"[:4096]
    wanted = {"Ready": "False", "Stalled": "True"}
    said = {item.get("type"): (item.get("status"), item.get("reason"), item.get("message")) for item in known}
    if all(said.get(name) == (status, REASON, text) for name, status in wanted.items()):
        return None
    moment = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    kept = [item for item in known if item.get("type") not in wanted]
    return kept + [
        {
            "type": name,
            "status": status,
            "observedGeneration": generation,
            "lastTransitionTime": moment,
            "reason": REASON,
            "message": text,
        }
        for name, status in wanted.items()
    ]
