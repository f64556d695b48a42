"""Actor and critic for MiniGrid's and BabyAI's small images of cell codes."""

from __future__ import annotations

import torch
from torch import nn

from cleanrl_worker.agents.layers import orthogonal
from cleanrl_worker.wrappers.mission import VOCABULARY

CODES = 10.0
"""The largest code of a cell: dividing by it brings the image into [0, 1]."""
_CHANNELS = 64
_LAST = 5
"""The last convolution's place in the network, plus one: where its output is on its way to the ReLU."""


class MinigridCNN(nn.Module):
    """Three 3x3 convolutions that keep the size, flattened, and a linear layer to `features`.

    Codes are divided by `scale`. `features=None` leaves the linear layer out: older files have the heads right on the flattened
    image, and were trained with `scale=255`.
    """

    scale: torch.Tensor

    def __init__(self, view: int = 7, features: int | None = 128, scale: float = CODES) -> None:
        super().__init__()
        # A file says so when its network was trained with another scale; without a word it is the usual one.
        self.register_buffer("scale", torch.tensor(float(scale)), persistent=scale != CODES and features is not None)
        flat = 64 * view * view
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 32), (32, 64), (64, _CHANNELS)):
            layers += [orthogonal(nn.Conv2d(inputs, outputs, 3, padding=1)), nn.ReLU()]
        layers.append(nn.Flatten())
        if features is not None:
            layers.append(orthogonal(nn.Linear(flat, features)))
        self.network = nn.Sequential(*layers)
        self.outputs = flat if features is None else features

    def forward(self, image: torch.Tensor, told: torch.Tensor | None = None) -> torch.Tensor:
        """(batch, view, view, 3) codes to (batch, outputs).

        `told`, (batch, 2 * 64), stretches and shifts each channel of the last convolution (FiLM, Perez et al. 2018), so that
        what is looked for can depend on what was asked for.
        """
        features: torch.Tensor = image.permute(0, 3, 1, 2).float() / self.scale
        if told is None:
            features = self.network(features)
        else:
            stretch, shift = told[:, :, None, None].chunk(2, dim=1)
            features = self.network[_LAST:](self.network[:_LAST](features) * (1 + stretch) + shift)
        return features


class Mission(nn.Embedding):
    """What a mission means to the convolutions: the sum over its words. It begins as nothing at all: all zeros."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        super().__init__(vocabulary, 2 * _CHANNELS, _weight=torch.zeros(vocabulary, 2 * _CHANNELS))
        self.padding_idx = 0

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """(batch, n) numbers of words to (batch, 2 * channels)."""
        return super().forward(words.long()).sum(dim=1)


class MinigridAgent(nn.Module):
    """`MinigridCNN` under an actor and a critic, each with one hidden layer of 128.

    With `words`, the size of a vocabulary, images have a fourth layer that holds the mission (`wrappers/mission.py`).
    """

    def __init__(
        self,
        actions: int,
        view: int = 7,
        features: int | None = 128,
        scale: float = CODES,
        words: int | None = None,
    ) -> None:
        super().__init__()
        self.cnn = MinigridCNN(view, features, scale)
        self.mission = None if words is None else Mission(words)
        self.actor = _head(self.cnn.outputs, actions, 0.01)
        self.critic = _head(self.cnn.outputs, 1, 1.0)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (batch, actions) and values (batch,)."""
        parts = (image,) if self.mission is None else (image[..., :3], self.mission(image[..., 3].flatten(1)))
        hidden = self.cnn(*parts)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def _head(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(orthogonal(nn.Linear(inputs, 128)), nn.ReLU(), orthogonal(nn.Linear(128, outputs), gain))
