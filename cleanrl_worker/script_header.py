"""What a training script says about itself, read from its text. Pure but for opening the file.

    #!/usr/bin/env bash
    # @description: DoorKey, from 5x5 to 8x8
    # @env_family: minigrid
    # @phases: 2
    # @total_timesteps: 300000
    PHASE1_ENV="MiniGrid-DoorKey-5x5-v0"
    PHASE2_ENV="MiniGrid-DoorKey-8x8-v0"

The `@` lines stand among the first 30; all are optional. `PHASE<n>_ENV` and `LEVEL<n>_ENV` may stand anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from cleanrl_worker.flags import whole
from cleanrl_worker.plainfile import exists, is_file

SHIPPED = Path(__file__).parent / "scripts"
HEADER_LINES = 30
MAX_BYTES = 1024 * 1024
_ENTRY = re.compile(r"\s*#\s*@(\w+)\s*:\s*(.*?)\s*")
_ENVIRONMENT = re.compile(r"""^\s*(?:export\s+)?(?:PHASE|LEVEL)\d+_ENV=["']?([^"'\s;]+)""", re.MULTILINE)
_NUMBERS = ("phases", "total_timesteps")


class ScriptError(ValueError):
    """A script that can't be run. The message says why and what to do."""


@dataclass(frozen=True)
class Script:
    path: Path
    description: str = ""
    env_family: str = ""
    phases: int | None = None
    total_timesteps: int | None = None
    environments: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=(), compare=False)


def read(given: str | Path) -> Script:
    """The script at a path, or the shipped one of that name. Raises ScriptError."""
    path = find(given)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ScriptError(f"{path} is larger than {MAX_BYTES // 1024} KiB, which no training script is")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ScriptError(f"the script {path} can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ScriptError(f"{path} is no text: expected a bash script") from None
    if "\r\n" in text:
        raise ScriptError(f"{path} has Windows line ends, which bash can't read: convert it (sed -i 's/\\r$//' FILE)")
    return parse(text, path)


def find(given: str | Path) -> Path:
    path = Path(given)
    shipped = SHIPPED / (path.name if path.suffix else f"{path.name}.sh")
    if is_file(path):
        return path
    if exists(path):
        raise ScriptError(f"{path} is not a file: expected a bash script")
    if len(path.parts) == 1 and is_file(shipped):
        return shipped
    names = ", ".join(sorted(script.name for script in SHIPPED.glob("*.sh")))
    raise ScriptError(f"there is no script {path}; give the path of a file, or one of {names}")


def parse(text: str, path: Path) -> Script:
    entries: dict[str, str] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines[:HEADER_LINES], 1):
        match = _ENTRY.fullmatch(line)
        if match is None:
            continue
        name, value = match[1], match[2]
        if name in _NUMBERS and (whole(value) or 0) < 1:
            raise ScriptError(
                f"{path}, line {number}: @{name} must be a whole number of at least 1, got {value[:40]!r}"
            )
        entries.setdefault(name, value)
    warnings = []
    if not lines or not re.match(r"#!.*\b(ba)?sh\b", lines[0]):
        warnings.append(f"{path.name} does not begin with '#!/usr/bin/env bash'; it is run with bash all the same")
    if "MOSAIC_CONFIG_FILE" not in text:
        warnings.append(f"{path.name} never reads MOSAIC_CONFIG_FILE: the run's configuration has no influence on it")
    return Script(
        path=path,
        description=entries.get("description", ""),
        env_family=entries.get("env_family", ""),
        phases=whole(entries.get("phases")),
        total_timesteps=whole(entries.get("total_timesteps")),
        environments=tuple(dict.fromkeys(_ENVIRONMENT.findall(text))),
        warnings=tuple(warnings),
    )
