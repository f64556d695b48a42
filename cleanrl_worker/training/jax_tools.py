"""What the algorithms in JAX share: surroundings, compiled functions, arrays that checkpoints keep, flax's model files.

A gradient step is one jitted function, `state -> state`, over a NamedTuple of arrays that is donated: the old arrays' memory
becomes the new ones'. Observations and batches stay in NumPy. On a CPU the functions run within the call that asks for them:
handing work as small as this to another thread costs more than it gains, and a batch may be overwritten as soon as the call
returns.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

import flax.serialization
import jax
import numpy as np

from cleanrl_worker.training.replay import Batch

if TYPE_CHECKING:
    from cleanrl_worker.training.run import Run

Tree = Any
"""Nested dicts, lists and NamedTuples with arrays as leaves."""
P = ParamSpec("P")
R = TypeVar("R")
StateT = TypeVar("StateT", bound=NamedTuple)

jax.tree_util.register_dataclass(Batch, [field.name for field in dataclasses.fields(Batch)], [])


def prepare(run: Run) -> jax.Array:
    """Set JAX up for this run and return its first random key. Says once what it computes on."""
    _configure(jax_cpu_enable_async_dispatch=False)
    _use_compile_cache(run)
    device = jax.devices()[0]
    if device.platform == "cpu":
        run.note("JAX found no GPU and computes on the CPU.")
    else:
        run.note(f"JAX computes on {device.device_kind}.")
    return jax.random.PRNGKey(run.args.seed)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where compiled functions are kept between runs: `JAX_COMPILATION_CACHE_DIR`, else in the user's cache."""
    given = environ.get("JAX_COMPILATION_CACHE_DIR")
    base = environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(given) if given else Path(base) / "cleanrl-worker" / "jax"


def _use_compile_cache(run: Run) -> None:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        run.note(
            f"{folder} can't be written, so compiled functions are not kept for the next run: set "
            "JAX_COMPILATION_CACHE_DIR to a folder that can.",
            level="warning",
        )
        return
    _configure(
        jax_compilation_cache_dir=str(folder),
        jax_persistent_cache_min_compile_time_secs=0.0,
        jax_persistent_cache_min_entry_size_bytes=-1,
    )


def _configure(**settings: Any) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]


class Jitted(Generic[P, R]):
    """A function that JAX compiles when it is first called, which is told as a step of the run's progress.

    `donate` names the positions of arguments that are used up by a call.
    """

    def __init__(self, run: Run, what: str, function: Callable[P, R], donate: tuple[int, ...] = ()) -> None:
        self._run, self._what = run, what
        self._function: Callable[P, R] = jax.jit(function, donate_argnums=donate)
        self._compiled = False

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._compiled:
            return self._function(*args, **kwargs)
        self._run.note(f"Compiling {self._what} ...")
        began = time.monotonic()
        result = self._function(*args, **kwargs)
        jax.block_until_ready(result)  # type: ignore[no-untyped-call]
        self._compiled = True
        self._run.note(f"Compiled {self._what} in {time.monotonic() - began:.1f} s.")
        return result


class Learner(Generic[StateT]):
    """The state of a training run in JAX, a NamedTuple that jitted functions take and replace."""

    def __init__(self, state: StateT) -> None:
        self.state = state

    def part(self, *names: str) -> Part:
        """Some fields of the state, as a thing that a checkpoint keeps and a model file holds."""
        return Part(self, names)


class Part:
    """One field of a learner's state, or several, numbered as flax numbers a list."""

    def __init__(self, learner: Learner[Any], names: tuple[str, ...]) -> None:
        self._learner, self._names = learner, names

    def state_dict(self) -> Any:
        """NumPy arrays in nested dicts."""
        trees = [plain(getattr(self._learner.state, name)) for name in self._names]
        return trees[0] if len(trees) == 1 else {str(i): tree for i, tree in enumerate(trees)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, or a model file. Raises ValueError, with the place, for what does not fit."""
        several = len(self._names) > 1
        if several and len(saved) != len(self._names):
            raise ValueError(f"it has {len(saved)} networks, this algorithm needs {len(self._names)}")
        fields = {
            name: fitted(getattr(self._learner.state, name), saved[str(i)] if several else saved, name)
            for i, name in enumerate(self._names)
        }
        self._learner.state = self._learner.state._replace(**fields)


def plain(tree: Tree) -> Any:
    """The tree as nested dicts of NumPy arrays: what checkpoints and model files are made of."""
    return jax.tree.map(np.asarray, flax.serialization.to_state_dict(tree))


def fitted(like: Tree, saved: Any, name: str) -> Tree:
    """`saved`, as `plain` gave it, in the shape of `like`."""
    wanted, given = (_leaves(tree) for tree in (plain(like), saved))
    if wanted.keys() != given.keys():
        raise ValueError(f"{name} has other parts: {', '.join(sorted(wanted.keys() ^ given.keys()))}")
    for path, leaf in wanted.items():
        if np.shape(given[path]) != leaf.shape:
            raise ValueError(f"{name}{path} has shape {np.shape(given[path])}, this run needs {leaf.shape}")
    restored = flax.serialization.from_state_dict(like, saved)
    # a copy each: JAX may use NumPy's memory as it is, and what is donated must be nobody else's
    return jax.tree.map(lambda leaf, old: jax.numpy.array(leaf, old.dtype, copy=True), restored, like)


def _leaves(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def copied(tree: Tree) -> Tree:
    """The same values in memory of their own."""
    return jax.tree.map(jax.numpy.copy, tree)


def moved(target: Tree, online: Tree, tau: float) -> Tree:
    """The target network's parameters, moved towards the online one's by the fraction `tau`."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, online)


def model_bytes(model: Any) -> bytes:
    """What a model file of flax holds, from nested dicts of arrays and plain values."""
    return bytes(flax.serialization.msgpack_serialize(flax.serialization.to_state_dict(model)))
