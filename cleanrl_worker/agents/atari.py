"""Convolutional trunks for Atari's and Procgen's images, and the agents on them.

Images are uint8, channels first: (rows, channels, height, width). They become floats between 0 and 1 in `scaled`, once, on
the device where they are looked at. The trunks are plain lists of layers, to be put into a `Sequential` called `network`:
that gives the keys that model files have (`network.0.weight`, ...).
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.layers import orthogonal

NATURE_FEATURES = 512
IMPALA_FEATURES = 256
IMPALA_CHANNELS = (16, 32, 32)


def scaled(images: torch.Tensor) -> torch.Tensor:
    """Pixels 0 to 255 as floats 0 to 1, laid out with channels last, which is how convolutions on a CPU are fastest."""
    return images.to(torch.float32, memory_format=torch.channels_last).mul_(1 / 255)


def nature_layers(channels: int = 4, *, layer_norm: bool = False) -> list[nn.Module]:
    """The trunk of Mnih et al. (2015): three convolutions and a layer of 512, for images of 84x84.

    With `layer_norm`, each layer's output is normalised before its ReLU, as PQN wants it.
    """

    def block(layer: nn.Module, *shape: int) -> list[nn.Module]:
        return [layer, *([nn.LayerNorm(shape)] if layer_norm else []), nn.ReLU()]

    return [
        *block(orthogonal(nn.Conv2d(channels, 32, 8, stride=4)), 32, 20, 20),
        *block(orthogonal(nn.Conv2d(32, 64, 4, stride=2)), 64, 9, 9),
        *block(orthogonal(nn.Conv2d(64, 64, 3)), 64, 7, 7),
        nn.Flatten(),
        *block(orthogonal(nn.Linear(64 * 7 * 7, NATURE_FEATURES)), NATURE_FEATURES),
    ]


class ResidualBlock(nn.Module):
    """Two convolutions that keep the size, added to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.conv1(functional.relu(self.conv0(functional.relu(x))))
        return x + inner


class ConvSequence(nn.Module):
    """A convolution, a pooling that halves the image, and two residual blocks."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.res_block0 = ResidualBlock(outputs)
        self.res_block1 = ResidualBlock(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = functional.max_pool2d(self.conv(x), 3, stride=2, padding=1)
        after: torch.Tensor = self.res_block1(self.res_block0(pooled))
        return after


def impala_layers(shape: tuple[int, int, int], features: int = IMPALA_FEATURES) -> list[nn.Module]:
    """The deep residual trunk of Espeholt et al. (2018) for images of (channels, height, width)."""
    inputs, height, width = shape
    layers: list[nn.Module] = []
    for outputs in IMPALA_CHANNELS:
        layers.append(ConvSequence(inputs, outputs))
        inputs, height, width = outputs, (height + 1) // 2, (width + 1) // 2
    return [*layers, nn.Flatten(), nn.ReLU(), nn.Linear(inputs * height * width, features), nn.ReLU()]


@torch.no_grad()
def scale_norms(layers: list[nn.Module], gain: float = 1.4) -> list[nn.Module]:
    """Give an IMPALA trunk the initial weights of phasic policy gradient: every output has a weight vector of fixed norm.

    The norms of the residual branches shrink with the number of branches, so that the signal keeps its size with depth.
    """
    sequences = [layer for layer in layers if isinstance(layer, ConvSequence)]
    branch = math.sqrt(1 / math.sqrt(len(sequences)) / math.sqrt(2))
    for sequence in sequences:
        normed(sequence.conv, 1.0)
        for block in (sequence.res_block0, sequence.res_block1):
            normed(block.conv0, branch)
            normed(block.conv1, branch)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            normed(layer, gain)
    return layers


@torch.no_grad()
def normed(layer: nn.Linear | nn.Conv2d, norm: float) -> nn.Linear | nn.Conv2d:
    """Scale each output's weights to the length `norm`, biases zero."""
    flat = layer.weight.flatten(1)
    layer.weight.mul_((norm / flat.norm(dim=1)).reshape(-1, *[1] * (layer.weight.dim() - 1)))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class NatureAgent(nn.Module):
    """Actor and critic, linear on one Nature trunk."""

    def __init__(self, actions: int, channels: int = 4) -> None:
        super().__init__()
        self.network = nn.Sequential(*nature_layers(channels))
        self.actor = orthogonal(nn.Linear(NATURE_FEATURES, actions), 0.01)
        self.critic = orthogonal(nn.Linear(NATURE_FEATURES, 1), 1.0)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (rows, actions) and values (rows,)."""
        hidden = self.network(scaled(images))
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


class ImpalaAgent(nn.Module):
    """Actor and critic, linear on one IMPALA trunk."""

    def __init__(self, actions: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.network = nn.Sequential(*impala_layers(shape))
        self.actor = orthogonal(nn.Linear(IMPALA_FEATURES, actions), 0.01)
        self.critic = orthogonal(nn.Linear(IMPALA_FEATURES, 1), 1.0)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (rows, actions) and values (rows,)."""
        hidden = self.network(scaled(images))
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


class PhasicAgent(nn.Module):
    """Actor, critic and a second critic that only serves to shape the trunk, on one IMPALA trunk.

    The critic itself does not reach into the trunk: that is left to the policy, and to the second critic in its own phase.
    """

    def __init__(self, actions: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.network = nn.Sequential(*scale_norms(impala_layers(shape)))
        self.actor = normed(nn.Linear(IMPALA_FEATURES, actions), 0.1)
        self.critic = normed(nn.Linear(IMPALA_FEATURES, 1), 0.1)
        self.aux_critic = normed(nn.Linear(IMPALA_FEATURES, 1), 0.1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (rows, actions) and values (rows,)."""
        hidden = self.network(scaled(images))
        return self.actor(hidden), self.critic(hidden.detach()).squeeze(-1)

    def all_heads(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits, values, and the values of the second critic."""
        hidden = self.network(scaled(images))
        return self.actor(hidden), self.critic(hidden.detach()).squeeze(-1), self.aux_critic(hidden).squeeze(-1)


class NatureValues(nn.Module):
    """A value per action on a Nature trunk with LayerNorm: PQN's network."""

    def __init__(self, actions: int, channels: int = 4) -> None:
        super().__init__()
        trunk = nature_layers(channels, layer_norm=True)
        self.network = nn.Sequential(*trunk, orthogonal(nn.Linear(NATURE_FEATURES, actions)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Values (rows, actions)."""
        values: torch.Tensor = self.network(scaled(images))
        return values


class RecurrentTrunk(nn.Module):
    """A Nature trunk on single images under an LSTM. The memory of a row is emptied where an episode starts.

    The memory is one tensor (2, rows, size): what the LSTM puts out, and its cells.
    """

    def __init__(self, channels: int = 1, size: int = 128, *, layer_norm: bool = False) -> None:
        super().__init__()
        self.network = nn.Sequential(*nature_layers(channels, layer_norm=layer_norm))
        self.lstm = nn.LSTM(NATURE_FEATURES, size)
        for name, parameter in self.lstm.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter, 1.0)

    def initial_memory(self, rows: int) -> torch.Tensor:
        return torch.zeros(2, rows, self.lstm.hidden_size, device=next(self.parameters()).device)

    def remember(
        self, images: torch.Tensor, memory: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sequences (steps, rows, ...) with the memory before them, and where episodes start: features (steps, rows, size),
        and the memory after."""
        steps, rows = images.shape[:2]
        encoded = self.network(scaled(images.flatten(0, 1))).view(steps, rows, -1)
        # Between two starts the whole stretch goes through the recurrent layer at once.
        cuts = [0, *(t for t, start in enumerate(starts.any(dim=1).tolist()) if start and t), steps]
        outputs = []
        for begin, end in pairwise(cuts):
            memory = memory * (1.0 - starts[begin].float())[None, :, None]
            output, (hidden, cells) = self.lstm(encoded[begin:end], (memory[:1].contiguous(), memory[1:].contiguous()))
            memory = torch.cat((hidden, cells))
            outputs.append(output)
        return torch.cat(outputs), memory


class RecurrentNatureAgent(RecurrentTrunk):
    """Actor and critic, linear on a `RecurrentTrunk`."""

    def __init__(self, actions: int, channels: int = 1) -> None:
        super().__init__(channels)
        self.actor = orthogonal(nn.Linear(self.lstm.hidden_size, actions), 0.01)
        self.critic = orthogonal(nn.Linear(self.lstm.hidden_size, 1), 1.0)

    def forward(
        self, images: torch.Tensor, memory: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits (steps, rows, actions), values (steps, rows), and the memory after."""
        hidden, memory = self.remember(images, memory, starts)
        return self.actor(hidden), self.critic(hidden).squeeze(-1), memory


class RecurrentNatureValues(RecurrentTrunk):
    """A value per action on a `RecurrentTrunk` with LayerNorm."""

    def __init__(self, actions: int, channels: int = 1) -> None:
        super().__init__(channels, layer_norm=True)
        self.q_func = orthogonal(nn.Linear(self.lstm.hidden_size, actions))

    def forward(
        self, images: torch.Tensor, memory: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Values (steps, rows, actions) and the memory after."""
        hidden, memory = self.remember(images, memory, starts)
        return self.q_func(hidden), memory
