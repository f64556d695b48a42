"""jax and flax as they are now, seen by a script written for jax 0.4."""

from __future__ import annotations

from typing import Any


def patch_clip(jax_numpy: Any) -> None:
    """`clip` takes `a_min` and `a_max` again, under which scripts give the bounds."""
    original = jax_numpy.clip

    def clip(*args: Any, **kwargs: Any) -> Any:
        for old, new in (("a", "arr"), ("a_min", "min"), ("a_max", "max")):
            if old in kwargs:
                kwargs[new] = kwargs.pop(old)
        if "arr" in kwargs:  # positional only
            args = (kwargs.pop("arr"), *args)
        return original(*args, **kwargs)

    jax_numpy.clip = clip


def patch_tree_map(jax: Any) -> None:
    """`jax.tree_map` and its siblings stood at the top before they moved to `jax.tree`."""
    for name in ("flatten", "leaves", "map", "reduce", "structure", "transpose", "unflatten"):
        if f"tree_{name}" not in vars(jax):  # asking would raise: jax answers for these names with an error
            setattr(jax, f"tree_{name}", getattr(jax.tree, name))


def patch_train_state(module: Any) -> None:
    """Parameters may be a `flax.struct.dataclass` again.

    flax asks whether a certain key is `in` them, which such an object cannot answer: it has fields and no keys.
    """
    state = module.TrainState
    original_create, original_apply = state.create.__func__, state.apply_gradients

    def create(cls: Any, /, *, apply_fn: Any, params: Any, tx: Any, **kwargs: Any) -> Any:
        if hasattr(params, "__contains__"):
            return original_create(cls, apply_fn=apply_fn, params=params, tx=tx, **kwargs)
        return cls(step=0, apply_fn=apply_fn, params=params, tx=tx, opt_state=tx.init(params), **kwargs)

    def apply_gradients(self: Any, *, grads: Any, **kwargs: Any) -> Any:
        if hasattr(grads, "__contains__"):
            return original_apply(self, grads=grads, **kwargs)
        import optax  # type: ignore[import-untyped]

        updates, opt_state = self.tx.update(grads, self.opt_state, self.params)
        params = optax.apply_updates(self.params, updates)
        return self.replace(step=self.step + 1, params=params, opt_state=opt_state, **kwargs)

    state.create = classmethod(create)
    state.apply_gradients = apply_gradients
