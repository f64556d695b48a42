"""TensorBoard beside the worker: started as a child, ended the moment the pod ends.

A container's first process gets no default signal handling, and TensorBoard installs its own only after seconds of imports: a
pod whose worker ended early would wait out its whole grace period, and hold its GPU for it. The arguments are TensorBoard's.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from types import FrameType


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop. TensorBoard's own end is this program's end, with the same exit code."""
    child: subprocess.Popen[bytes] | None = None
    told = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal told
        told = True
        if child is not None:
            child.kill()  # it only reads: nothing can be lost

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    given = sys.argv[1:] if arguments is None else arguments
    child = subprocess.Popen([sys.executable, "-m", "tensorboard.main", *given])
    if told:  # the signal came between the handler and the start
        child.kill()
    code = child.wait()
    return 0 if told else code


if __name__ == "__main__":
    sys.exit(main())
