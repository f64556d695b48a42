"""The run's configuration: JSON in, one frozen value or one error that names every fault out.

Two forms are read: a whole job descriptor, where the worker's part lies at `metadata.worker.config`, and that part
alone. Overrides from the command line are merged before anything is checked, so they can also repair a field. `${NAME}`
is filled from the environment. Keys that nobody knows stay in `raw`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ulid import ULID

from cleanrl_worker import flags, registry, schedule
from cleanrl_worker.config_shape import Extras, Job, Switch, Worker, explain, mode_name, show
from cleanrl_worker.frozen import FrozenDict, freeze, thaw
from cleanrl_worker.redact import HIDDEN, Redactor

log = logging.getLogger(__name__)

SECRET_EXTRAS = ("wandb_api_key",)
"""Extras that are taken out of `extras` on the way in: they reach the child by its environment only."""

_MAX_FILE_BYTES = 16 * 1024 * 1024
_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_RUN_ID_VARIABLES = ("CLEANRL_RUN_ID", "MOSAIC_RUN_ID")
_PLACEHOLDER_DEFAULTS = {"VAR_TENSORBOARD_DIR": "tensorboard"}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ConfigError(ValueError):
    """Everything that is wrong with a configuration, one line each in `problems`."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        head = "the run's configuration is wrong" if len(problems) == 1 else f"{len(problems)} fields are wrong"
        super().__init__(f"{head}: {problems[0]}" if len(problems) == 1 else "\n  - ".join([f"{head}:", *problems]))


@dataclass(frozen=True, repr=False)
class CleanRLWorkerConfig:
    """What one run does. Frozen all the way down; secrets are in none of the fields that are shown or saved."""

    run_id: str
    algo: str
    env_id: str
    total_timesteps: int
    seed: int | None = None
    extras: Mapping[str, Any] = field(default_factory=FrozenDict)
    worker_id: str | None = None
    raw: Mapping[str, Any] = field(default_factory=FrozenDict)
    """The input as it came, for debugging, secrets hidden."""
    gpus: int = 0
    """GPUs that the job descriptor asks for."""
    max_wallclock_seconds: float | None = None
    environment: Mapping[str, str] = field(default_factory=FrozenDict)
    """Variables for the run, over those of the worker's own environment."""
    tensorboard: bool = True
    wandb: bool = False
    dry_run: bool = False
    """Check everything where the run would run, say what would run, and end without running it."""
    secrets: Mapping[str, str] = field(default_factory=FrozenDict)
    run_id_made: bool = False
    """Nobody named the run. One that goes on in a folder has the name that it had there."""

    def __post_init__(self) -> None:
        for name in ("extras", "raw", "environment", "secrets"):
            object.__setattr__(self, name, freeze(getattr(self, name)))

    def __repr__(self) -> str:
        shown = self.to_dict()
        hidden = ("raw", "environment")
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items() if k not in hidden)})"

    @classmethod
    def from_dict(
        cls,
        data: Any,
        *,
        overrides: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CleanRLWorkerConfig:
        """Either form of configuration. Raises ConfigError that names every bad field."""
        return _Reader(data, overrides or {}, os.environ if env is None else env).read()

    def with_overrides(self, **overrides: Any) -> CleanRLWorkerConfig:
        """A changed copy, checked like a new one; None leaves a value as it is and `extras` are merged over."""
        given = {name: value for name, value in overrides.items() if value is not None}
        known = {item.name for item in fields(self)} - {"raw", "secrets", "run_id_made"}
        if unknown := sorted(set(given) - known):
            raise TypeError(f"a configuration has no field {', '.join(unknown)}")
        extras = {**_without(thaw(self.extras), given), **self.secrets, **given.pop("extras", {})}
        payload = {
            "run_id": self.run_id,
            "algo": self.algo,
            "env_id": self.env_id,
            "total_timesteps": self.total_timesteps,
            "seed": self.seed,
            "worker_id": self.worker_id,
            "dry_run": self.dry_run,
            "extras": extras,
            "resources": {"gpus": given.pop("gpus", self.gpus)},
            "environment": given.pop("environment", thaw(self.environment)),
            "artifacts": {
                "tensorboard": {"enabled": given.pop("tensorboard", self.tensorboard)},
                "wandb": {"enabled": given.pop("wandb", self.wandb)},
            },
            **{name: given.pop(name) for name in list(given) if name != "max_wallclock_seconds"},
        }
        limit = given.get("max_wallclock_seconds", self.max_wallclock_seconds)
        if limit is not None:
            payload["schedule"] = {"max_duration_seconds": limit}
        changed = CleanRLWorkerConfig.from_dict(payload)
        object.__setattr__(changed, "raw", self.raw)
        object.__setattr__(changed, "run_id_made", self.run_id_made and changed.run_id == self.run_id)
        return changed

    def renamed(self, run_id: str) -> CleanRLWorkerConfig:
        """The same run under the name it had before. Where a name that was made is part of a value, that is `${RUN_ID}`."""
        if not self.run_id_made:
            return replace(self, run_id=run_id)
        values = {name: getattr(self, name) for name in ("worker_id", "extras", "environment")}
        return replace(self, run_id=run_id, **_renamed(values, self.run_id, run_id))

    @property
    def mode(self) -> str:
        mode = str(self.extras.get("mode") or "train")
        return "curriculum" if mode == "train" and self.extras.get("curriculum_schedule") else mode

    @property
    def stages(self) -> list[schedule.Stage]:
        """The curriculum that is trained on; empty without one."""
        given = self.extras.get("curriculum_schedule") if self.mode in ("curriculum", "resume_training") else None
        return schedule.parse(thaw(given)) if given else []

    @property
    def trained_env_id(self) -> str:
        """What the trained policy is for: a curriculum leads to the environment of its last stage."""
        return self.stages[-1].env_id if self.stages else self.env_id

    @property
    def algo_params(self) -> Mapping[str, Any]:
        return self.extras.get("algo_params") or {}

    @property
    def cuda(self) -> bool:
        """Whether the algorithm may use a GPU: said in so many words, or because GPUs were asked for."""
        words = [self.extras.get(name) for name in ("cuda", "use_cuda", "gpu")] + [flags.given(self.extras).get("cuda")]
        said = [value for word in words if (value := flags.truth(word)) is not None]
        return any(said) if said else self.gpus > 0

    @property
    def tensorboard_dir(self) -> str | None:
        """Where TensorBoard's files go, relative to the run's folder unless absolute; None when they are off."""
        return str(self.extras.get("tensorboard_dir") or "tensorboard") if self.tensorboard else None

    @cached_property
    def redactor(self) -> Redactor:
        """Hides this run's secrets, whichever way they came."""
        return Redactor.for_environment(os.environ, self.environment, values=self.secrets.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, secrets hidden: what is printed, saved and sent."""
        names = [item.name for item in fields(self) if item.name not in ("secrets", "run_id_made")]
        shown: dict[str, Any] = self.redactor.data({name: getattr(self, name) for name in names})
        return shown


WorkerConfig = CleanRLWorkerConfig


def load_worker_config(
    path: Path | None,
    overrides: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> CleanRLWorkerConfig:
    """The configuration in a file, or of the overrides alone when `path` is None. Raises ConfigError."""
    payload = {} if path is None else _read_json(path)
    return CleanRLWorkerConfig.from_dict(payload, overrides=overrides, env=env)


def parse_json(text: str | bytes) -> Any:
    """Strict JSON: NaN and Infinity are errors. Raises ValueError with one sentence."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_EXAMPLE = '{"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100000}'


def _read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError([f"{path}: is larger than {_MAX_FILE_BYTES // 2**20} MiB, which no configuration is"])
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError([f"{path}: can't be read: {error.strerror or error}"]) from None
    try:
        data = parse_json(text)
    except ValueError as error:
        if b"kind: CleanRLRun" not in text:
            raise ConfigError([f"{path}: is not JSON: {error}; write an object such as {_EXAMPLE}"]) from None
        data = {"kind": "CleanRLRun"}
    if isinstance(data, dict) and data.get("kind") == "CleanRLRun":
        raise ConfigError(
            [f"{path}: is a manifest: `kubectl apply -f` takes it; the worker takes JSON like {_EXAMPLE}"]
        )
    return data


def _script_of(section: Mapping[str, Any]) -> str | None:
    """The script of a descriptor that names no module to run: itself, or what its shell is given."""
    script, arguments = section.get("script"), section.get("arguments")
    if section.get("module") or not isinstance(script, str) or not script:
        return None
    if Path(script).name not in ("bash", "sh"):
        return script
    words = arguments if isinstance(arguments, list) else []
    return next((word for word in words if isinstance(word, str) and not word.startswith("-")), "")


_M = TypeVar("_M", bound=BaseModel)


class _Reader:
    """One reading of one configuration. Collects problems as it goes and raises them all at the end."""

    def __init__(self, data: Any, overrides: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self.data = data
        self.overrides = {name: value for name, value in overrides.items() if value is not None}
        self.env = env
        self.problems: list[str] = []
        self.run_id_made = False

    def read(self) -> CleanRLWorkerConfig:
        job, worker = self._split()
        worker.update({name: self.overrides[name] for name in _WORKER_OVERRIDES if name in self.overrides})
        extras = self._merge_extras(worker.pop("extras", None))
        params = flags.given(extras)
        worker.update({name: params[name] for name in _SAID_ONCE if worker.get(name) is None and name in params})
        self._override_job(job)
        worker["run_id"] = self._settle_run_id(worker.get("run_id"), job)
        names = self._placeholder_values(worker["run_id"], job)
        worker = self._fill(worker, names, "")
        extras = self._fill(extras, names, "extras")
        job = self._fill(job, names, "")

        # Every check looks at what it needs and nothing else, so that one bad field does not hide another.
        self._default_env_id(worker, extras)
        parsed_worker = self._check(Worker, worker, "")
        parsed_extras = self._check(Extras, extras, "extras")
        parsed_job = self._check(Job, job, "") or Job()
        self._check_environment(_mapping(job.get("environment")))
        environment = parsed_job.environment or {}
        settled = dict(extras)
        if parsed_extras is not None:
            settled = {**extras, **parsed_extras.model_dump(include=set(extras), exclude={"notes"})}
        self._settle_curriculum(settled, worker)
        if settled.get("mode") == "resume_training" and not settled.get("checkpoint_path"):
            settled["checkpoint_path"] = settled.get("policy_path")  # forms that know one name for both write this
        self._check_mode(settled, environment, worker.get("total_timesteps"))
        self._check_algorithm(worker.get("algo"), settled)
        self._check_conflicts(worker, extras)
        self._check_folder(settled.get("tensorboard_dir"))
        if self.problems or parsed_worker is None or parsed_extras is None:
            raise ConfigError(list(dict.fromkeys(self.problems)))

        secrets = {name: settled[name] for name in SECRET_EXTRAS if settled.get(name) not in (None, HIDDEN)}
        for name in SECRET_EXTRAS:
            settled.pop(name, None)
        redactor = Redactor.for_environment(self.env, environment, values=secrets.values())
        return CleanRLWorkerConfig(
            run_id=parsed_worker.run_id,
            algo=parsed_worker.algo,
            env_id=parsed_worker.env_id,
            total_timesteps=self._total_steps(parsed_worker, parsed_extras),
            seed=parsed_worker.seed,
            extras=settled,
            worker_id=parsed_worker.worker_id,
            raw=redactor.data(self.data),
            gpus=self._gpus(parsed_job),
            max_wallclock_seconds=self._limit(parsed_job, parsed_worker, parsed_extras),
            environment=environment,
            tensorboard=self._switch(parsed_job, "tensorboard", default=True),
            wandb=self._wandb(parsed_job, parsed_extras),
            dry_run=bool(parsed_worker.dry_run),
            secrets=secrets,
            run_id_made=self.run_id_made,
        )

    # -- taking the input apart

    def _split(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(keys of the job descriptor, the worker's part)."""
        if not isinstance(self.data, Mapping):
            raise ConfigError([f"expected a JSON object, got {show(self.data)}"])
        job = {name: self.data[name] for name in Job.model_fields if name in self.data}
        if "metadata" not in self.data:
            worker = {name: self.data[name] for name in (*Worker.model_fields, "extras") if name in self.data}
            self._read_own_words(job)
            _tell_unknown(self.data)
            return job, worker
        metadata = self.data["metadata"]
        if not isinstance(metadata, Mapping):
            raise ConfigError([f"metadata missing from the job descriptor: expected an object, got {show(metadata)}"])
        section = metadata.get("worker")
        if not isinstance(section, Mapping):
            raise ConfigError([f"metadata.worker missing: expected an object, got {show(section)}"])
        config = section.get("config")
        if not isinstance(config, Mapping):
            raise ConfigError(
                [f"metadata.worker.config missing from trainer config payload: expected an object, got {show(config)}"]
            )
        worker = dict(config)
        _tell_unknown(config)
        if worker.get("worker_id") is None and isinstance(section.get("worker_id"), str):
            worker["worker_id"] = section["worker_id"]
        extras, script = worker.get("extras") or {}, _script_of(section)
        if script is not None and isinstance(extras, Mapping) and mode_name(extras.get("mode")) in _SCRIPTED:
            worker["extras"] = {**extras, "script_path": extras.get("script_path") or script, "mode": "script"}
        if "artifacts" in metadata and isinstance(metadata["artifacts"], Mapping):
            job["artifacts"] = {**metadata["artifacts"], **_said(_mapping(job.get("artifacts")))}
        for name in Job.model_fields:  # the worker's part may carry them too, and is the closer word
            if worker.get(name) is not None:
                job[name] = worker[name]
        return job, worker

    def _read_own_words(self, job: dict[str, Any]) -> None:
        """A saved `config.json` is a configuration too: it says in its own words what a descriptor says in others."""
        if "gpus" in self.data and "resources" not in job:
            job["resources"] = {"gpus": self.data["gpus"]}
        if self.data.get("max_wallclock_seconds") is not None and "schedule" not in job:
            job["schedule"] = {"max_duration_seconds": self.data["max_wallclock_seconds"]}
        switches = {name: {"enabled": self.data[name]} for name in ("tensorboard", "wandb") if name in self.data}
        if switches and "artifacts" not in job:
            job["artifacts"] = switches
        environment = job.get("environment")
        if isinstance(environment, Mapping):
            job["environment"] = {name: value for name, value in environment.items() if value != HIDDEN}

    def _merge_extras(self, given: Any) -> dict[str, Any]:
        if given is not None and not isinstance(given, Mapping):
            self.problems.append(f"extras: expected an object, got {show(given)}")
        extras = _without({**_mapping(given), **_mapping(self.overrides.get("extras"))}, self.overrides)
        for name in ("policy_path", "cuda"):
            if name in self.overrides:
                extras[name] = self.overrides[name]
        if "wandb" in self.overrides:
            extras["track_wandb"] = self.overrides["wandb"]
        if "max_wallclock_minutes" in self.overrides:
            extras.pop("max_wallclock_minutes", None)
        return extras

    def _override_job(self, job: dict[str, Any]) -> None:
        if "gpus" in self.overrides:
            job["resources"] = {"gpus": self.overrides["gpus"]}
        if "max_wallclock_minutes" in self.overrides:
            job["max_wallclock_minutes"] = self.overrides["max_wallclock_minutes"]
            job.pop("schedule", None)
        if "tensorboard" in self.overrides:
            artifacts = _mapping(job.get("artifacts"))
            job["artifacts"] = {**artifacts, "tensorboard": {"enabled": self.overrides["tensorboard"]}}

    # -- names and placeholders

    def _settle_run_id(self, given: Any, job: Mapping[str, Any]) -> Any:
        known = {**self.env, **_mapping(job.get("environment"))}
        ours = [str(known[name]) for name in _RUN_ID_VARIABLES if known.get(name)]
        if given is None or (isinstance(given, str) and not given.strip()):
            return ours[0] if ours else self._made_id()
        if isinstance(given, str) and "${RUN_ID}" in given:
            named = [str(known["RUN_ID"])] if known.get("RUN_ID") else ours
            return given.replace("${RUN_ID}", named[0] if named else self._made_id())
        return given

    def _made_id(self) -> str:
        self.run_id_made = True
        return str(ULID())

    def _placeholder_values(self, run_id: Any, job: Mapping[str, Any]) -> dict[str, str]:
        environment = {k: v for k, v in _mapping(job.get("environment")).items() if isinstance(v, str)}
        return {**_PLACEHOLDER_DEFAULTS, **self.env, **environment, "RUN_ID": str(run_id)}

    def _fill(self, value: Any, names: Mapping[str, str], path: str) -> Any:
        """Replace placeholders all the way down; refuse what no process can be given: odd Unicode, NUL, infinite numbers."""
        if isinstance(value, Mapping):
            sound = {key: item for key, item in value.items() if self._is_sound(str(key), _join(path, show(key)))}
            return {str(key): self._fill(item, names, _join(path, key)) for key, item in sound.items()}
        if isinstance(value, list | tuple):
            return [self._fill(item, names, f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, float) and not math.isfinite(value):
            self.problems.append(f"{path}: expected a finite number, got {value}")
            return None
        if not isinstance(value, str):
            return value
        unknown = [name for name in _PLACEHOLDER.findall(value) if name not in names]
        if unknown:
            listed = ", ".join(f"${{{name}}}" for name in dict.fromkeys(unknown))
            self.problems.append(f"{path}: {listed} is not set in the environment; set it or write the value itself")
            return value
        return _PLACEHOLDER.sub(lambda match: names[match[1]], value) if self._is_sound(value, path) else ""

    def _is_sound(self, text: str, path: str) -> bool:
        """Whether a command line or an environment can hold it."""
        try:
            text.encode()
        except UnicodeEncodeError:
            self.problems.append(f"{path}: expected text that is valid Unicode, got {show(text)}")
            return False
        if "\0" in text:
            self.problems.append(f"{path}: must not contain a NUL character")
        return "\0" not in text

    # -- checks

    def _check(self, model: type[_M], data: Mapping[str, Any], prefix: str) -> _M | None:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            self.problems += [explain(item, prefix) for item in error.errors(include_url=False)]
            return None

    def _check_mode(self, extras: Mapping[str, Any], environment: Mapping[str, str], total: Any) -> None:
        mode = extras.get("mode") or "train"
        if mode in ("policy_eval", "interactive") and not extras.get("policy_path"):
            self.problems.append(f"extras.policy_path: {mode} mode requires a policy_path extra")
        if mode == "script" and not extras.get("script_path"):
            self.problems.append("extras.script_path: script mode requires the script to run")
        if mode == "curriculum" and extras.get("curriculum_schedule") is None:
            self.problems.append("extras.curriculum_schedule: curriculum_schedule is required in curriculum mode")
        if mode == "resume_training" and not (
            extras.get("checkpoint_path") or {**self.env, **environment}.get("CLEANRL_RESUME_PATH")
        ):
            self.problems.append(
                "extras.checkpoint_path: resume_training mode requires the checkpoint to go on from "
                "(or CLEANRL_RESUME_PATH in the environment)"
            )
        if total is None and mode in ("policy_eval", "interactive", "script"):
            return
        if mode == "policy_eval" and extras.get("eval_episodes") is not None:
            return
        if total is None:
            self.problems.append("total_timesteps: is required; expected a whole number of at least 1")
            return
        try:
            too_few = not isinstance(total, bool) and float(total) < 1
        except (TypeError, ValueError, OverflowError):
            return  # not a number: said already
        if too_few:
            self.problems.append(f"total_timesteps: expected a whole number of at least 1, got {show(total)}")

    def _default_env_id(self, worker: dict[str, Any], extras: Mapping[str, Any]) -> None:
        """A curriculum names its environments itself."""
        if worker.get("env_id") is None and extras.get("curriculum_schedule"):
            with contextlib.suppress(schedule.ScheduleError):  # said by `_settle_curriculum`
                worker["env_id"] = schedule.parse(extras["curriculum_schedule"])[-1].env_id

    def _settle_curriculum(self, extras: dict[str, Any], worker: Mapping[str, Any]) -> None:
        """Replace a preset's name by its stages."""
        if extras.get("curriculum_schedule") is None:
            return
        try:
            stages = schedule.parse(extras["curriculum_schedule"])
        except schedule.ScheduleError as error:
            self.problems.append(f"extras.curriculum_schedule: {error}")
        else:
            extras["curriculum_schedule"] = [stage.to_dict() for stage in stages]
            if str(worker.get("algo")).startswith("cleanrl."):
                self.problems.append(
                    f"extras.curriculum_schedule: the foreign script {worker['algo']} can't follow a curriculum; "
                    "use one of this package's algorithms, ppo for example"
                )

    def _check_environment(self, environment: Mapping[str, Any]) -> None:
        for name in environment:
            if not _ENV_NAME.fullmatch(name):
                self.problems.append(f"environment: {show(name)} is not a name that a variable can have")

    def _check_algorithm(self, algo: Any, extras: Mapping[str, Any]) -> None:
        if not isinstance(algo, str) or not algo or not isinstance(extras.get("algo_params") or {}, Mapping):
            return  # said already
        try:
            algorithm = registry.parse(algo)
        except registry.UnknownAlgorithmError as error:
            self.problems.append(f"algo: {error}")
        else:
            self.problems += flags.check(algorithm, extras)

    def _check_conflicts(self, worker: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        for path, name, value in flags.parameters(extras):
            top = worker.get(name)
            if name in _SAID_ONCE and value not in (None, "") and not _same(value, top):
                self.problems.append(f"{path}: is {show(value)}, but {name} is {show(top)}; give it once")

    def _check_folder(self, directory: Any) -> None:
        if isinstance(directory, str) and ".." in Path(directory).parts:
            self.problems.append("extras.tensorboard_dir: must not lead out of the run's folder with '..'")

    # -- what the job descriptor adds

    def _total_steps(self, worker: Worker, extras: Extras) -> int:
        steps = worker.total_timesteps or 0
        return steps if steps >= 1 else extras.eval_episodes or 1

    def _gpus(self, job: Job) -> int:
        gpus = job.resources.gpus if job.resources else None
        return gpus.requested if gpus else 0

    def _limit(self, job: Job, worker: Worker, extras: Extras) -> float | None:
        """The tightest of the limits that were given."""
        minutes = (job.max_wallclock_minutes, worker.max_wallclock_minutes, extras.max_wallclock_minutes)
        if "max_wallclock_minutes" in self.overrides:
            minutes = (job.max_wallclock_minutes, None, None)
        limits = [value * 60 for value in minutes if value is not None]
        if job.schedule and job.schedule.max_duration_seconds is not None:
            limits.append(job.schedule.max_duration_seconds)
        return min(limits, default=None)

    def _switch(self, job: Job, name: str, *, default: bool) -> bool:
        switch: Switch | None = getattr(job.artifacts, name) if job.artifacts else None
        return default if switch is None or switch.enabled is None else switch.enabled

    def _wandb(self, job: Job, extras: Extras) -> bool:
        if extras.track_wandb is not None:
            return extras.track_wandb
        return self._switch(job, "wandb", default=bool(flags.truth(flags.given(extras.model_dump()).get("track"))))


_SAID_ONCE = ("env_id", "total_timesteps", "seed")
"""Fields of the run that are also flags of every algorithm."""
_SCRIPTED = (None, "train", "script")
"""Modes of a descriptor that names a script instead of a module."""
_WORKER_OVERRIDES = ("run_id", "algo", "env_id", "total_timesteps", "seed", "worker_id")


def _tell_unknown(section: Mapping[str, Any]) -> None:
    """Keys that nobody reads are no fault, but who wrote one should know: a flag of the algorithm may be among them."""
    known = {*Worker.model_fields, *Job.model_fields, *(each.name for each in fields(CleanRLWorkerConfig))}
    if unknown := sorted(show(name) for name in section if name not in known):
        log.warning(
            "the configuration's %s mean nothing to the worker and are left out; flags of the algorithm belong into "
            "extras.algo_params",
            ", ".join(unknown[:5]),
        )


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _said(values: dict[str, Any]) -> dict[str, Any]:
    """Without null, which says nothing."""
    return {name: value for name, value in values.items() if value is not None}


def _without(extras: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The extras but for what a flag has a newer word for: the run's own fields, and whether it uses a GPU."""
    said = [name for name in _SAID_ONCE if overrides.get(name) is not None]
    if any(overrides.get(name) is not None for name in ("cuda", "gpus")):
        said += ["cuda", "use_cuda", "gpu"]
    kept = {name: value for name, value in extras.items() if flags.canonical(str(name)) not in said}
    if isinstance(kept.get("algo_params"), Mapping):
        params = kept["algo_params"]
        kept["algo_params"] = {k: v for k, v in params.items() if flags.canonical(str(k)) not in said}
    return kept


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _renamed(item, old, new) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(item, old, new) for item in value]
    return value.replace(old, new) if isinstance(value, str) else value


def _same(one: Any, other: Any) -> bool:
    """Whether both say the same: 7, 7.0 and "7" do."""
    number = flags.whole(one)
    return str(one) == str(other) or (number is not None and number == flags.whole(other))


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
