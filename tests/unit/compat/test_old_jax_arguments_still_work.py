from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cleanrl_worker.compat.jax_numpy import patch_clip, patch_train_state, patch_tree_map


def clip(arr: Any = None, /, min: Any = None, max: Any = None) -> tuple[Any, Any, Any]:  # noqa: A002 - jax's own names
    """The signature of today's `jax.numpy.clip`."""
    return arr, min, max


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((5,), {"a_min": 0, "a_max": 3}),
        ((), {"a": 5, "a_min": 0, "a_max": 3}),
        ((5, 0, 3), {}),
        ((5,), {"min": 0, "max": 3}),
    ],
)
def test_bounds_by_either_name(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    jax_numpy = SimpleNamespace(clip=clip)
    patch_clip(jax_numpy)
    assert jax_numpy.clip(*args, **kwargs) == (5, 0, 3)


def test_train_states_of_dataclasses() -> None:
    """Two networks' parameters side by side in one object, which flax itself no longer takes."""
    flax = pytest.importorskip("flax")
    optax = pytest.importorskip("optax")
    import jax.numpy as jnp
    from flax.training import train_state

    class TrainState(train_state.TrainState):  # type: ignore[misc] # flax has no types
        pass

    patch_train_state(SimpleNamespace(TrainState=TrainState))

    @flax.struct.dataclass  # type: ignore[untyped-decorator]
    class Both:
        actor: Any
        critic: Any

    for make in (Both, lambda actor, critic: {"actor": actor, "critic": critic}):
        state = TrainState.create(apply_fn=None, params=make(jnp.ones(2), jnp.ones(1)), tx=optax.sgd(0.5))
        after = state.apply_gradients(grads=make(jnp.ones(2), jnp.zeros(1)))
        values = after.params if isinstance(after.params, dict) else vars(after.params)
        assert values["actor"].tolist() == [0.5, 0.5]
        assert values["critic"].tolist() == [1.0]
        assert after.step == 1


def test_tree_functions_at_the_top() -> None:
    jax = pytest.importorskip("jax")
    here = SimpleNamespace(tree=jax.tree, tree_leaves=len)
    patch_tree_map(here)
    assert here.tree_map(lambda x: x + 1, {"a": 1}) == {"a": 2}
    assert here.tree_leaves is len, "what jax still has stays"
