"""What can be known to be missing before anything is started. Nothing heavy is imported to find out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cleanrl_worker import environment, registry, requirement_sets
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.registry import Algorithm

RUNNABLE_MODES = ("train", "resume_training")


class PreflightError(Exception):
    """The run can't be started here. The message says what is missing and how to get it."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n  - ".join(["the run can't be started here:", *problems]) if problems[1:] else problems[0])


@dataclass(frozen=True)
class Findings:
    """The algorithm that would be started, the sets it needs, and what stands in the way."""

    algorithm: Algorithm | None
    requirements: list[str]
    missing: list[str]
    """What is not installed."""
    unavailable: list[str]
    """What no installation of this version can do."""

    @property
    def problems(self) -> list[str]:
        return [*self.unavailable, *self.missing]


def look(config: CleanRLWorkerConfig, env: Mapping[str, str]) -> Findings:
    """Check mode, algorithm and packages. Raises nothing: a dry run shows the findings, a run refuses on them."""
    problems, unavailable = [], []
    if config.mode not in RUNNABLE_MODES:
        unavailable.append(
            f"mode {config.mode!r} is not available in this version of the worker; "
            f"available are {' and '.join(RUNNABLE_MODES)}"
        )
    upstream = config.extras.get("upstream_dir") or {**env, **config.environment}.get(registry.UPSTREAM_DIR)
    algorithm = None
    try:
        algorithm = registry.resolve(config.algo, upstream)
    except registry.UnknownAlgorithmError as error:
        problems.append(str(error))
    sets = [] if algorithm is not None and algorithm.kind == "plugin" else ["base"]
    try:
        if sets:
            sets = requirement_sets.for_run(config.algo, config.env_id)
        asked = requirement_sets.resolve(config.extras.get("requirements") or [])
        sets = list(dict.fromkeys([*sets, *asked]))
        problems += [str(missing) for missing in requirement_sets.missing(sets)]
    except requirement_sets.UnknownSetError as error:
        problems.append(f"extras.requirements: {error}")
    if algorithm is not None and algorithm.upstream_dir is not None:
        from cleanrl_worker.compat.requirements import foreign_requirements

        script = algorithm.upstream_dir / "cleanrl" / f"{algorithm.target.removeprefix('cleanrl.')}.py"
        problems += [str(missing) for missing in foreign_requirements(script)]
    return Findings(algorithm, sets, problems, unavailable)


def check_files(config: CleanRLWorkerConfig, env: Mapping[str, str]) -> None:
    """The checkpoint to go on from has to be there. Only asked when the run really starts."""
    given = config.extras.get("checkpoint_path") if config.mode == "resume_training" else None
    given = given or {**env, **config.environment}.get(environment.RESUME_PATH)
    if given and not Path(given).exists():
        raise PreflightError([f"there is no checkpoint at {given}; give the path of a checkpoint or model file"])
