"""Networks of random network distillation: an agent with two critics, and the two networks whose difference is curiosity."""

from __future__ import annotations

import torch
from torch import nn

from cleanrl_worker.agents.atari import scaled
from cleanrl_worker.agents.layers import orthogonal

HIDDEN = 448


class RNDAgent(nn.Module):
    """An actor, and critics of the game's reward and of curiosity, on a convolutional trunk for 84x84 images."""

    def __init__(self, actions: int, channels: int = 4) -> None:
        super().__init__()
        self.network = nn.Sequential(
            orthogonal(nn.Conv2d(channels, 32, 8, stride=4)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3)),
            nn.ReLU(),
            nn.Flatten(),
            orthogonal(nn.Linear(64 * 7 * 7, 256)),
            nn.ReLU(),
            orthogonal(nn.Linear(256, HIDDEN)),
            nn.ReLU(),
        )
        self.extra_layer = nn.Sequential(orthogonal(nn.Linear(HIDDEN, HIDDEN), 0.1), nn.ReLU())
        self.actor = nn.Sequential(
            orthogonal(nn.Linear(HIDDEN, HIDDEN), 0.01), nn.ReLU(), orthogonal(nn.Linear(HIDDEN, actions), 0.01)
        )
        self.critic_ext = orthogonal(nn.Linear(HIDDEN, 1), 0.01)
        self.critic_int = orthogonal(nn.Linear(HIDDEN, 1), 0.01)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits (rows, actions), and the values (rows,) of the game's reward and of curiosity."""
        hidden = self.network(scaled(images))
        features = hidden + self.extra_layer(hidden)
        return self.actor(hidden), self.critic_ext(features).squeeze(-1), self.critic_int(features).squeeze(-1)


class Curiosity(nn.Module):
    """A random network that never learns, and one that learns to predict it (Burda et al. 2018).

    Where the prediction is bad, the image is new. Images are single and normalised: (rows, 1, 84, 84) floats.
    """

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Sequential(*_convolutions(), orthogonal(nn.Linear(64 * 7 * 7, 512)))
        self.predictor = nn.Sequential(
            *_convolutions(),
            orthogonal(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
            orthogonal(nn.Linear(512, 512)),
            nn.ReLU(),
            orthogonal(nn.Linear(512, 512)),
        )
        self.target.requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The squared errors of the prediction (rows, 512)."""
        with torch.no_grad():
            wanted = self.target(images)
        error: torch.Tensor = (self.predictor(images) - wanted) ** 2
        return error


def _convolutions() -> list[nn.Module]:
    return [
        orthogonal(nn.Conv2d(1, 32, 8, stride=4)),
        nn.LeakyReLU(),
        orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
        nn.LeakyReLU(),
        orthogonal(nn.Conv2d(64, 64, 3)),
        nn.LeakyReLU(),
        nn.Flatten(),
    ]
