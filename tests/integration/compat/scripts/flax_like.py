"""In the style of a script for jax 0.4: two networks' parameters side by side in one object, and jax.tree_map."""

import flax
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState


@flax.struct.dataclass
class Both:
    actor: jnp.array
    critic: jnp.array


state = TrainState.create(apply_fn=None, params=Both(jnp.ones(2), jnp.ones(1)), tx=optax.sgd(0.5))
state = jax.jit(lambda s: s.apply_gradients(grads=Both(jnp.ones(2), jnp.zeros(1))))(state)
print(state.params.actor.tolist(), state.params.critic.tolist(), int(state.step))
state = TrainState.create(apply_fn=None, params={"actor": jnp.ones(2)}, tx=optax.sgd(0.5))
print(state.apply_gradients(grads={"actor": jnp.ones(2)}).params["actor"].tolist())
print(jax.tree_map(lambda x: x + 1, {"a": 1}))
