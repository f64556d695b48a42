"""Actor and critic with a memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from cleanrl_worker.agents.layers import orthogonal

MASKED_BY_DEFAULT = (0, 6, 7)


class GRUAgent(nn.Module):
    """obs-256-256 with ReLU, a GRU, and linear heads. The memory of a row is emptied where an episode starts.

    `masked` actions are never chosen: their logits are -inf. Nothing was learned about them, so weights say which they are.
    """

    masked: torch.Tensor

    def __init__(
        self, obs_size: int, actions: int, hidden_size: int = 128, num_layers: int = 1, masked: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            orthogonal(nn.Linear(obs_size, 256)), nn.ReLU(), orthogonal(nn.Linear(256, 256)), nn.ReLU()
        )
        self.gru = nn.GRU(256, hidden_size, num_layers)
        for name, parameter in self.gru.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter, 1.0)
        self.actor = orthogonal(nn.Linear(hidden_size, actions), 0.01)
        self.critic = orthogonal(nn.Linear(hidden_size, 1), 1.0)
        mask = torch.zeros(actions, dtype=torch.bool)
        mask[[action for action in masked if action < actions]] = True
        if mask.all():
            raise ValueError("every action is masked")
        self.register_buffer("masked", mask, persistent=bool(masked))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """A flag says what is masked, whatever the weights say of it: checkpoints from before they did say nothing."""
        learned = {name: value for name, value in state_dict.items() if name != "masked"}
        own = {name: value for name, value in self.state_dict().items() if name == "masked"}
        return super().load_state_dict({**learned, **own}, strict, assign)

    def initial_memory(self, rows: int) -> torch.Tensor:
        return torch.zeros(self.gru.num_layers, rows, self.gru.hidden_size, device=self.masked.device)

    def forward(
        self, obs: torch.Tensor, memory: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sequences (steps, rows, obs) with the memory before them, and where episodes start: logits (steps, rows, actions),
        values (steps, rows), and the memory after."""
        encoded = self.encoder(obs.flatten(2).float())
        # Between two starts the whole stretch goes through the recurrent layer at once.
        cuts = [0, *(t for t, start in enumerate(starts.any(dim=1).tolist()) if start and t), len(encoded)]
        outputs = []
        for begin, end in pairwise(cuts):
            memory = memory * (1.0 - starts[begin].float())[None, :, None]
            output, memory = self.gru(encoded[begin:end], memory)
            outputs.append(output)
        hidden = torch.cat(outputs)
        return self.actor(hidden).masked_fill(self.masked, -torch.inf), self.critic(hidden).squeeze(-1), memory
