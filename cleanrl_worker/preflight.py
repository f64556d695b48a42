"""What can be known to be missing before anything is started. Nothing heavy is imported to find out.

`look` reads names and what is installed; `check_files` asks for the files that a run needs; `try_out`, for a dry run where the
run would run, makes its environments and reads its checkpoint in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cleanrl_protocol.limits import NO_CHECKPOINT
from cleanrl_worker import environment, registry, requirement_sets, script_header
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.modes.commands import MODULES
from cleanrl_worker.plainfile import exists
from cleanrl_worker.registry import Algorithm


class PreflightError(Exception):
    """The run can't be started here. The message says what is missing and how to get it."""

    reason = "BadConfig"

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n  - ".join(["the run can't be started here:", *problems]) if problems[1:] else problems[0])


class NoCheckpoint(PreflightError):
    """What the run is to start from is not there. Whoever named it may know another by now."""

    reason = NO_CHECKPOINT


@dataclass(frozen=True)
class Findings:
    """The algorithm that would be started, the sets it needs, and what stands in the way."""

    algorithm: Algorithm | None
    requirements: list[str]
    problems: list[str]


def look(config: CleanRLWorkerConfig, env: Mapping[str, str]) -> Findings:
    """Check mode, algorithm and packages. Raises nothing: a dry run shows the findings, a run refuses on them."""
    problems: list[str] = []
    if config.mode == "script":
        try:
            script_header.read(config.extras["script_path"])
        except script_header.ScriptError as error:
            problems.append(str(error))
    upstream = config.extras.get("upstream_dir") or {**env, **config.environment}.get(registry.UPSTREAM_DIR)
    algorithm = None
    if config.mode in MODULES:
        parsed = registry.parse(config.algo)
        algorithm = Algorithm(config.algo, "own", MODULES[config.mode], schema_name=parsed.schema_name)
    else:
        try:
            algorithm = registry.resolve(config.algo, upstream)
        except registry.UnknownAlgorithmError as error:
            problems.append(str(error))
    sets = [] if algorithm is not None and algorithm.kind == "plugin" else ["base"]
    try:
        if sets:
            sets = requirement_sets.for_run(config.algo, config.trained_env_id)
        if config.stages:  # Syllabus-RL comes with it
            sets = [*sets, "minigrid"]
        asked = requirement_sets.resolve(config.extras.get("requirements") or [])
        sets = list(dict.fromkeys([*sets, *asked]))
        problems += [str(missing) for missing in requirement_sets.missing(sets)]
    except requirement_sets.UnknownSetError as error:
        problems.append(f"extras.requirements: {error}")
    if algorithm is not None and algorithm.upstream_dir is not None:
        from cleanrl_worker.compat.requirements import foreign_requirements

        script = registry.upstream_script(algorithm.upstream_dir, algorithm.target)
        problems += [str(missing) for missing in foreign_requirements(script, algorithm.upstream_dir)]
    return Findings(algorithm, sets, problems)


_NOT_GYMNASIUMS = frozenset({"envpool", "procgen", "pettingzoo"})
_PATIENCE_SECONDS = 300


def try_out(config: CleanRLWorkerConfig, findings: Findings, env: Mapping[str, str]) -> dict[str, Any]:
    """Make the environments and read the checkpoint or policy, in a process of its own. Raises PreflightError.

    Returns what was seen. Environments of libraries other than gymnasium, and scripts, are taken on trust; so are those of
    foreign scripts and plug-ins, which may register environments of their own.
    """
    strange = findings.algorithm is not None and findings.algorithm.kind != "own"
    if strange or config.mode == "script" or _NOT_GYMNASIUMS & set(findings.requirements):
        return {}
    extras = config.extras
    words = [f"--algo={config.algo.removeprefix('cleanrl.')}"]
    words += [f"--env-id={stage.env_id}" for stage in config.stages] or [f"--env-id={config.env_id}"]
    if config.mode in MODULES:
        words.append(f"--policy-path={extras['policy_path']}")
    elif config.mode == "resume_training" and extras.get("checkpoint_path"):
        words.append(f"--checkpoint-path={extras['checkpoint_path']}")
    words += [f"--sha256={extras['checkpoint_sha256']}"] if extras.get("checkpoint_sha256") else []
    command = [sys.executable, "-m", "cleanrl_worker.launcher", "cleanrl_worker.modes.check", *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            env={**env, **config.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_SECONDS,
        )
        seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise PreflightError([f"making the environment takes more than {_PATIENCE_SECONDS} s here"]) from None
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise PreflightError([f"the environment can't be tried out here: {said[0][:500]}"]) from None
    if seen["problems"]:
        raise PreflightError([str(problem) for problem in seen["problems"]])
    return seen


def check_files(config: CleanRLWorkerConfig, env: Mapping[str, str], *, goes_on: bool) -> None:
    """The checkpoint or model that the run needs has to be there. Only asked where the run really is to start.

    A run that `goes_on` from checkpoints of its own needs no longer what it once started from, which may be gone.
    """
    if config.mode in ("policy_eval", "interactive"):
        given = config.extras["policy_path"]
        if not exists(given):
            raise NoCheckpoint([f"there is no policy at {given}; give the path of a model file or a checkpoint"])
        return
    given = config.extras.get("checkpoint_path") if config.mode == "resume_training" else None
    given = given or {**env, **config.environment}.get(environment.RESUME_PATH)
    if given and not goes_on and not exists(given):
        raise NoCheckpoint([f"there is no checkpoint at {given}; give the path of a checkpoint or model file"])
