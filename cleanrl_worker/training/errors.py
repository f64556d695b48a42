"""The ends of a run that are not success, each with the exit code that tells it to the supervisor."""

from __future__ import annotations


class RunEnded(Exception):
    """A known end. `exit_code` is the process's, `reason` the word the supervisor reports."""

    exit_code = 1
    reason = "Error"


class BadConfig(RunEnded):
    """What was asked for can't be done. The message is a sentence that says what to change."""

    exit_code = 2
    reason = "BadConfig"


class Diverged(RunEnded):
    """A loss, a return or a reward is no longer a finite number."""

    exit_code = 3

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Unkept(RunEnded):
    """What was learned could not be written down."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Stopped(RunEnded):
    """The run was asked to stop and did, after a checkpoint."""

    exit_code = 0
    reason = "Stopped"
