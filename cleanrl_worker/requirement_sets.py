"""Requirement sets: which optional libraries a run needs, whether they are here, and the command that installs them.

A set has the name of one of the distribution's extras (`base` is the extra `worker`). The packages and their version
bounds are read from the distribution's metadata, so `pyproject.toml` is the one place where they are written down.

Nothing heavy is imported: a module is looked for with `find_spec`, never loaded.
"""

from __future__ import annotations

import ctypes.util
import difflib
import importlib.metadata
import importlib.util
import operator
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DISTRIBUTION = "cleanrl-operator"


class UnknownSetError(ValueError):
    """A name that is neither a requirement set nor an alias of one. The message lists what there is."""


@dataclass(frozen=True)
class RequirementSet:
    """A named group of packages. `system_libraries` maps a shared library to the Debian package that brings it."""

    name: str
    summary: str
    extra: str
    system_libraries: tuple[tuple[str, str], ...] = ()

    @property
    def packages(self) -> tuple[str, ...]:
        """Requirement strings as an installer takes them, for example `mujoco<4,>=3.3`."""
        return _extras().get(self.extra, ())

    @property
    def modules(self) -> tuple[str, ...]:
        """The import name of each package."""
        return tuple(dict.fromkeys(_import_name(package) for package in self.packages))


@dataclass(frozen=True)
class Missing:
    """A module that is not installed, the set that brings it, and the command that installs the set."""

    set: str
    module: str
    command: str

    def __str__(self) -> str:
        return (
            f"module {self.module!r} (requirement set {self.set!r}) is not installed; install it with: {self.command}"
        )


_PROCGEN_LIBRARIES = (("Qt5Gui", "libqt5gui5"), ("Qt5Core", "libqt5core5a"))

SETS: dict[str, RequirementSet] = {
    entry.name: entry
    for entry in (
        RequirementSet("base", "PyTorch, gymnasium's classic control, TensorBoard, W&B", extra="worker"),
        RequirementSet("atari", "Arcade Learning Environment with its ROMs, and image preprocessing", extra="atari"),
        RequirementSet(
            "procgen", "the 16 Procgen games, through envpool", extra="procgen", system_libraries=_PROCGEN_LIBRARIES
        ),
        RequirementSet("mujoco", "MuJoCo locomotion (HalfCheetah, Hopper, ...)", extra="mujoco"),
        RequirementSet("dm-control", "DeepMind Control Suite through shimmy", extra="dm-control"),
        RequirementSet("box2d", "LunarLander, BipedalWalker, CarRacing", extra="box2d"),
        RequirementSet("minigrid", "MiniGrid and BabyAI, and curricula over them", extra="minigrid"),
        RequirementSet("envpool", "environments stepped in C++ threads", extra="envpool"),
        RequirementSet("jax", "JAX, flax and optax", extra="jax"),
        RequirementSet("pettingzoo", "multi-agent Atari", extra="pettingzoo"),
        RequirementSet("optuna", "hyperparameter search", extra="optuna"),
    )
}
"""Every set by name, in the order in which they are listed to people."""

_ALIASES = {
    "ale": "atari",
    "babyai": "minigrid",
    "classic": "base",
    "classic-control": "base",
    "cleanrl": "base",
    "dm-control-suite": "dm-control",
    "dmc": "dm-control",
    "dmcontrol": "dm-control",
    "gymnasium": "base",
    "petting-zoo": "pettingzoo",
    "worker": "base",
}

_IMPORT_NAMES = {
    "box2d": "Box2D",
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "pygame-ce": "pygame",
    "syllabus-rl": "syllabus",
}
"""Packages whose import name is not their own name with underscores."""

_MUJOCO_NAMES = (
    "Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|Pusher|Reacher|"
    "Swimmer|Walker2d"
)
_PROCGEN_GAMES = (
    "bigfish|bossfight|caveflyer|chaser|climber|coinrun|dodgeball|fruitbot|heist|jumper|leaper|maze|miner|"
    "ninja|plunder|starpilot"
)
_ATARI_GAMES = (
    "Adventure|AirRaid|Alien|Amidar|Assault|Asterix|Asteroids|Atlantis|BankHeist|BattleZone|BeamRider|Berzerk|"
    "Bowling|Boxing|Breakout|Carnival|Centipede|ChopperCommand|CrazyClimber|Defender|DemonAttack|DoubleDunk|"
    "ElevatorAction|Enduro|FishingDerby|Freeway|Frostbite|Gopher|Gravitar|Hero|IceHockey|Jamesbond|"
    "JourneyEscape|Kangaroo|Krull|KungFuMaster|MontezumaRevenge|MsPacman|NameThisGame|Phoenix|Pitfall|Pong|"
    "Pooyan|PrivateEye|Qbert|Riverraid|RoadRunner|Robotank|Seaquest|Skiing|Solaris|SpaceInvaders|StarGunner|"
    "Tennis|TimePilot|Tutankham|UpNDown|Venture|VideoPinball|WizardOfWor|YarsRevenge|Zaxxon"
)

_ENVIRONMENTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("atari", re.compile(r"ALE/.+|.+(NoFrameskip|Deterministic)-v\d+")),
    ("atari", re.compile(rf"({_ATARI_GAMES})(-ram)?-v\d+")),
    ("minigrid", re.compile(r"(MiniGrid|BabyAI)-.+")),
    ("dm-control", re.compile(r"dm_control/.+")),
    ("box2d", re.compile(r"(LunarLander|LunarLanderContinuous|BipedalWalker|BipedalWalkerHardcore|CarRacing)-v\d+")),
    ("mujoco", re.compile(rf"({_MUJOCO_NAMES})-v\d+")),
    ("procgen", re.compile(rf"(procgen:)?(procgen-)?({_PROCGEN_GAMES})((easy|hard)?-v\d+)?", re.IGNORECASE)),
    ("pettingzoo", re.compile(r"[a-z][a-z_]*_v\d+")),
)

_VECTOR_SOURCES = ("envpool", "procgen", "pettingzoo")
"""Words in an algorithm's name that say where its environments come from, whatever the environment's id looks like."""


def resolve(names: Iterable[str]) -> list[str]:
    """Canonical set names in the order given, each once; an alias counts as its set and `all` as every set.

    Raises UnknownSetError that names every unknown one with the closest known names.
    """
    found: dict[str, None] = {}
    complaints = []
    for given in names:
        name = given.strip().lower().replace("_", "-")
        name = _ALIASES.get(name, name)
        if name == "all":
            found.update(dict.fromkeys(SETS))
        elif name in SETS:
            found[name] = None
        else:
            close = difflib.get_close_matches(name, [*SETS, *_ALIASES], n=2)
            hint = f" (did you mean {' or '.join(dict.fromkeys(_ALIASES.get(c, c) for c in close))}?)" if close else ""
            complaints.append(f"{given.strip()!r}{hint}")
    if complaints:
        raise UnknownSetError(f"unknown requirement set {', '.join(complaints)}; the sets are {', '.join(SETS)}")
    return list(found)


def for_run(algo: str, env_id: str) -> list[str]:
    """The sets that this algorithm on this environment needs, `base` first.

    The algorithm's name says most of it. Its environment's id adds to that only when the algorithm makes its
    environments with gymnasium: envpool, for one, brings its own Atari and MuJoCo.
    """
    words = algo.rpartition(".")[2].split("_")
    sets = ["base"]
    source = next((word for word in _VECTOR_SOURCES if word in words), None)
    if source is not None:
        sets.append(source)
    else:
        if "atari" in words:
            sets.append("atari")
        sets += [name for name in for_environment(env_id) if name not in sets]
    if "jax" in words:
        sets.append("jax")
    return sets


def for_environment(env_id: str) -> list[str]:
    """The sets that an environment made with gymnasium needs beyond `base`, from the shape of its id."""
    return list(dict.fromkeys(name for name, pattern in _ENVIRONMENTS if pattern.fullmatch(env_id)))


def missing(sets: Iterable[str]) -> list[Missing]:
    """What is not installed of these sets, each module once. Aliases are understood."""
    absent: dict[str, Missing] = {}
    for name in resolve(sets):
        for package in SETS[name].packages:
            module = _import_name(package)
            if module not in absent and importlib.util.find_spec(module) is None:
                command = install_command([name])
                if not _fits_this_python(package):
                    command += f" with a Python where {package.partition(';')[2].strip()}"
                absent[module] = Missing(name, module, command)
    return list(absent.values())


def missing_libraries(sets: Iterable[str]) -> list[tuple[str, str]]:
    """System libraries that these sets load and that the dynamic linker can't find: (library, Debian package)."""
    wanted = dict.fromkeys(pair for name in resolve(sets) for pair in SETS[name].system_libraries)
    return [(library, package) for library, package in wanted if ctypes.util.find_library(library) is None]


def core_packages() -> tuple[str, ...]:
    """What the distribution needs whatever the set: its requirements without an extra."""
    return _extras().get("", ())


def install_command(sets: Iterable[str]) -> str:
    """What a person types to install these sets into the Python that runs the worker."""
    return f"python -m cleanrl_worker.tools.install_extras --set {','.join(sets)}"


def _import_name(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None
    package = re.sub(r"[-_.]+", "-", name[0]).lower()
    return _IMPORT_NAMES.get(package, package.replace("-", "_"))


def _fits_this_python(requirement: str) -> bool:
    """False when a `python_version` marker keeps installers from installing this package here."""
    bounds = re.findall(r"python_version\s*(<=?|>=?)\s*['\"](\d+)\.(\d+)['\"]", requirement.partition(";")[2])
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    return all(compare[sign](sys.version_info[:2], (int(major), int(minor))) for sign, major, minor in bounds)


@cache
def _extras() -> dict[str, tuple[str, ...]]:
    """Extra (`""` for none) -> requirement strings. Markers other than the extra itself stay with the requirement."""
    extras: dict[str, list[str]] = {}
    for line in _requires():
        requirement, _, marker = line.partition(";")
        rest = re.sub(rf"(\s*and\s+)?{_EXTRA_MARKER}", "", marker).strip()
        text = f"{requirement.strip()}; {rest}" if rest else requirement.strip()
        for extra in re.findall(_EXTRA_MARKER, marker) or [""]:
            extras.setdefault(extra, []).append(text)
    return {extra: tuple(lines) for extra, lines in extras.items()}


_EXTRA_MARKER = r"extra\s*==\s*['\"]([^'\"]+)['\"]"


def _requires() -> Iterator[str]:
    """The distribution's requirements; from `pyproject.toml` when the package runs from a checkout, uninstalled."""
    try:
        yield from importlib.metadata.requires(DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError:
        project = Path(__file__).resolve().parent.parent / "pyproject.toml"
        if not project.is_file():
            raise RuntimeError(
                f"the distribution {DISTRIBUTION!r} is not installed and {project} is not there, so the contents of "
                f"the requirement sets are unknown; install it with: pip install {DISTRIBUTION}"
            ) from None
        table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        yield from table["dependencies"]
        for extra, lines in table["optional-dependencies"].items():
            for line in lines:
                requirement, _, marker = line.partition(";")
                suffix = f"({marker.strip()}) and extra == '{extra}'" if marker.strip() else f"extra == '{extra}'"
                yield f"{requirement.strip()}; {suffix}"
