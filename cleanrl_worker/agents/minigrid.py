"""Actor and critic for MiniGrid's and BabyAI's small images of cell codes."""

from __future__ import annotations

import torch
from torch import nn

from cleanrl_worker.agents.layers import orthogonal

CODES = 10.0
"""The largest code of a cell: dividing by it brings the image into [0, 1]."""


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
        for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
            layers += [orthogonal(nn.Conv2d(inputs, outputs, 3, padding=1)), nn.ReLU()]
        layers.append(nn.Flatten())
        if features is not None:
            layers.append(orthogonal(nn.Linear(flat, features)))
        self.network = nn.Sequential(*layers)
        self.outputs = flat if features is None else features

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(batch, view, view, 3) codes to (batch, outputs)."""
        features: torch.Tensor = self.network(image.permute(0, 3, 1, 2).float() / self.scale)
        return features


class MinigridAgent(nn.Module):
    """`MinigridCNN` under an actor and a critic, each with one hidden layer of 128."""

    def __init__(self, actions: int, view: int = 7, features: int | None = 128, scale: float = CODES) -> None:
        super().__init__()
        self.cnn = MinigridCNN(view, features, scale)
        self.actor = _head(self.cnn.outputs, actions, 0.01)
        self.critic = _head(self.cnn.outputs, 1, 1.0)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (batch, actions) and values (batch,)."""
        hidden = self.cnn(image)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def _head(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(orthogonal(nn.Linear(inputs, 128)), nn.ReLU(), orthogonal(nn.Linear(128, outputs), gain))
