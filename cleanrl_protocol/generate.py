"""Writes the generated code beside this file from `proto/`: `python -m cleanrl_protocol.generate` (needs grpcio-tools).

The output is committed, so that an install needs no compiler; a test compares it with a fresh run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE.parent / "proto"
PROTOS = ("session", "mosaic_trainer")


def generated_names() -> list[str]:
    """The files that `generate` writes."""
    return sorted(f"{proto}_pb2{suffix}" for proto in PROTOS for suffix in (".py", ".pyi", "_grpc.py"))


def generate(out: Path) -> None:
    """Compile every proto into the folder `out/cleanrl_protocol`."""
    # Mapping the sources to the package's name makes the generated modules import each other by their full names.
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{PACKAGE.name}={SOURCES}",
        f"--python_out={out}",
        f"--pyi_out={out}",
        f"--grpc_python_out={out}",
        *(str(SOURCES / f"{proto}.proto") for proto in PROTOS),
    ]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    generate(PACKAGE.parent)
