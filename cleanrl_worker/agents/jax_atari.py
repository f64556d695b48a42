"""Value networks on stacked images of 84x84, in flax.

They take uint8 images, channels first as the environments give them, and turn them to channels last, as flax has them. The
layers are named as flax names them by itself (`Conv_0`, `Dense_0`, ...), in the order in which they are made, which is what
model files hold: so each is made right before it is used.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

NATURE_FEATURES = 512
IMPALA_FEATURES = 256
IMPALA_CHANNELS = (16, 32, 32)


def scaled(images: jax.Array) -> jax.Array:
    """Pixels 0 to 255 as floats 0 to 1, channels last."""
    return jnp.transpose(images, (0, 2, 3, 1)).astype(jnp.float32) * (1 / 255)


def nature_features(images: jax.Array) -> jax.Array:
    """The trunk of Mnih et al. (2015); to be called within a compact module, whose layers these become."""
    x = scaled(images)
    for channels, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        x = nn.relu(nn.Conv(channels, (size, size), (stride, stride), padding="VALID")(x))
    return nn.relu(nn.Dense(NATURE_FEATURES)(x.reshape(len(x), -1)))


class QNetwork(nn.Module):
    """DQN: a value for each action."""

    num_actions: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        features = nature_features(images)
        return nn.Dense(self.num_actions)(features)


class CategoricalQNetwork(nn.Module):
    """C51: for each action a distribution over the atoms."""

    num_actions: int
    n_atoms: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Probabilities (rows, actions, atoms)."""
        features = nature_features(images)
        logits = nn.Dense(self.num_actions * self.n_atoms)(features)
        return nn.softmax(logits.reshape(-1, self.num_actions, self.n_atoms), axis=-1)


class ResidualBlock(nn.Module):
    """Two convolutions that keep the size, added to what came in."""

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        inner = nn.Conv(self.channels, (3, 3))(nn.relu(x))
        return x + nn.Conv(self.channels, (3, 3))(nn.relu(inner))


class ConvSequence(nn.Module):
    """A convolution, a pooling that halves the image, and two residual blocks."""

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(self.channels, (3, 3))(x)
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")  # type: ignore[no-untyped-call]
        x = ResidualBlock(self.channels)(x)
        return ResidualBlock(self.channels)(x)


class ImpalaQNetwork(nn.Module):
    """Values on the residual trunk of Espeholt et al. (2018)."""

    num_actions: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = scaled(images)
        for channels in IMPALA_CHANNELS:
            x = ConvSequence(channels)(x)
        x = nn.relu(x.reshape(len(x), -1))
        x = nn.relu(nn.Dense(IMPALA_FEATURES)(x))
        return nn.Dense(self.num_actions)(x)
