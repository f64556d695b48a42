"""Actor and critic for vector observations and discrete actions."""

from __future__ import annotations

import torch
from torch import nn

from cleanrl_worker.agents.layers import orthogonal


class MLPAgent(nn.Module):
    """Two networks obs-64-64-out with tanh and nothing in common, or with `shared` one 64-64 trunk under two heads."""

    def __init__(self, obs_size: int, actions: int, shared: bool = False, width: int = 64) -> None:
        super().__init__()
        self.shared = shared
        if shared:
            self.network = _trunk(obs_size, width)
            self.actor: nn.Module = orthogonal(nn.Linear(width, actions), 0.01)
            self.critic: nn.Module = orthogonal(nn.Linear(width, 1), 1.0)
        else:
            self.actor = nn.Sequential(*_trunk(obs_size, width), orthogonal(nn.Linear(width, actions), 0.01))
            self.critic = nn.Sequential(*_trunk(obs_size, width), orthogonal(nn.Linear(width, 1), 1.0))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (batch, actions) and values (batch,)."""
        hidden = self.network(obs) if self.shared else obs
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def _trunk(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        orthogonal(nn.Linear(inputs, width)), nn.Tanh(), orthogonal(nn.Linear(width, width)), nn.Tanh()
    )
