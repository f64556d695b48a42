"""The supervisor's requests, and known ends, as every mode's process handles them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from cleanrl_protocol.limits import DISK_FULL
from cleanrl_worker.link import ChildLink
from cleanrl_worker.runfolder import reason_of
from cleanrl_worker.training.errors import RunEnded, Stopped, Unkept


def supervised(name: str, body: Callable[[ChildLink], int]) -> int:
    """Call `body` with the link to the supervisor. A known end becomes a fact, a sentence on stderr, and an exit code."""
    link = ChildLink.from_env()

    def failed(ended: RunEnded) -> int:
        print(f"{name}: {ended}", file=sys.stderr, flush=True)
        link.emit("failing", reason=ended.reason, message=str(ended))
        return ended.exit_code

    try:
        return body(link)
    except Stopped:
        return 0
    except RunEnded as ended:
        return failed(ended)
    except OSError as error:
        if reason_of(error) != DISK_FULL:
            raise
        return failed(Unkept(DISK_FULL, f"{error}. Free space on the volume."))
    finally:
        link.close()


def obey(link: ChildLink, step: int) -> None:
    """Stand still while paused; raise Stopped when the run is to end. Nothing is saved: there is nothing to save."""
    paused = False
    while link.requests or paused:
        if not link.requests:
            if not link.connected:
                raise RunEnded("The supervisor is gone while the run was paused.")
            time.sleep(0.05)
            continue
        command = link.requests.popleft().get("cmd")
        if command == "stop":
            link.emit("stopped", step=step, checkpoint=None)
            raise Stopped("stopped as requested")
        if command == "pause" and not paused:
            paused = True
            link.emit("paused", step=step, checkpoint=None)
        elif command == "resume":
            paused = False
            link.emit("resumed", step=step)
