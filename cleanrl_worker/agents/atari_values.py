"""Value networks on stacked images of 84x84, and the actor of discrete SAC.

All of them take uint8 images, channels first. The value networks answer `values(images)` with one number per action, whatever
they learn underneath. They start from torch's own initial weights unless they say otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import IMPALA_FEATURES, NATURE_FEATURES, impala_layers, nature_layers, scaled

NATURE_FLAT = 64 * 7 * 7


def default_weights(layers: list[nn.Module]) -> list[nn.Module]:
    """The same layers with the initial weights that torch gives them."""
    for layer in layers:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.reset_parameters()
    return layers


def nature_convolutions(channels: int) -> nn.Sequential:
    """The Nature trunk up to its flattened images, with torch's initial weights."""
    return nn.Sequential(*default_weights(nature_layers(channels)[:7]))


class QNetwork(nn.Module):
    """DQN: the Nature network of Mnih et al. (2015)."""

    def __init__(self, actions: int, channels: int = 4) -> None:
        super().__init__()
        self.network = nn.Sequential(*default_weights(nature_layers(channels)), nn.Linear(NATURE_FEATURES, actions))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.network(scaled(images))
        return values

    values = forward


class ImpalaQNetwork(nn.Module):
    """The same with the residual trunk of IMPALA."""

    def __init__(self, actions: int, shape: tuple[int, int, int] = (4, 84, 84)) -> None:
        super().__init__()
        self.network = nn.Sequential(*impala_layers(shape), nn.Linear(IMPALA_FEATURES, actions))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.network(scaled(images))
        return values

    values = forward


class CategoricalQNetwork(nn.Module):
    """C51: for each action a distribution over fixed returns, the atoms."""

    atoms: torch.Tensor

    def __init__(self, actions: int, n_atoms: int, v_min: float, v_max: float, channels: int = 4) -> None:
        super().__init__()
        self.actions = actions
        self.register_buffer("atoms", torch.linspace(v_min, v_max, n_atoms))
        last = nn.Linear(NATURE_FEATURES, actions * n_atoms)
        self.network = nn.Sequential(*default_weights(nature_layers(channels)), last)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (rows, actions, atoms)."""
        logits: torch.Tensor = self.network(scaled(images)).view(-1, self.actions, len(self.atoms))
        return logits

    def values(self, images: torch.Tensor) -> torch.Tensor:
        expected: torch.Tensor = self(images).softmax(dim=-1) @ self.atoms
        return expected


class NoisyLinear(nn.Module):
    """A linear layer whose weights and biases carry learned, factorised Gaussian noise (Fortunato et al. 2018).

    The noise of weight (i, j) is f(a_i) f(b_j), so y = W x + b + f(a) * (S (f(b) * x) + s): it is never written out as a
    matrix. In evaluation there is none.
    """

    noise_in: torch.Tensor
    noise_out: torch.Tensor

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__()
        reach = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-reach, reach))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-reach, reach))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * reach))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * reach))
        self.register_buffer("noise_in", torch.zeros(inputs))
        self.register_buffer("noise_out", torch.zeros(outputs))

    def resample(self) -> None:
        """New noise, for all rows alike."""
        for noise in (self.noise_in, self.noise_out):
            drawn = torch.randn_like(noise)
            noise.copy_(drawn.sign() * drawn.abs().sqrt())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        clean = functional.linear(x, self.weight, self.bias)
        if not self.training:
            return clean
        return clean + self.noise_out * functional.linear(x * self.noise_in, self.weight_sigma, self.bias_sigma)


class RainbowNetwork(nn.Module):
    """Distributions as in C51, split into a value and advantages (dueling), on noisy layers."""

    atoms: torch.Tensor

    def __init__(self, actions: int, n_atoms: int, v_min: float, v_max: float, channels: int = 4) -> None:
        super().__init__()
        self.actions = actions
        self.register_buffer("atoms", torch.linspace(v_min, v_max, n_atoms))
        self.network = nature_convolutions(channels)
        self.value_head = _noisy_head(n_atoms)
        self.advantage_head = _noisy_head(actions * n_atoms)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (rows, actions, atoms)."""
        features = self.network(scaled(images))
        value = self.value_head(features).view(-1, 1, len(self.atoms))
        advantage = self.advantage_head(features).view(-1, self.actions, len(self.atoms))
        logits: torch.Tensor = value + advantage - advantage.mean(dim=1, keepdim=True)
        return logits

    def values(self, images: torch.Tensor) -> torch.Tensor:
        expected: torch.Tensor = self(images).softmax(dim=-1) @ self.atoms
        return expected

    def resample(self) -> None:
        """New noise in all layers."""
        for module in self.modules():
            if isinstance(module, NoisyLinear):
                module.resample()


def _noisy_head(outputs: int) -> nn.Sequential:
    return nn.Sequential(NoisyLinear(NATURE_FLAT, NATURE_FEATURES), nn.ReLU(), NoisyLinear(NATURE_FEATURES, outputs))


class SoftQNetwork(nn.Module):
    """A critic of discrete SAC: a soft value for each action."""

    def __init__(self, actions: int, channels: int = 4) -> None:
        super().__init__()
        self.conv = nature_convolutions(channels)
        self.fc1 = nn.Linear(NATURE_FLAT, NATURE_FEATURES)
        self.fc_q = nn.Linear(NATURE_FEATURES, actions)
        _kaiming(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.fc_q(functional.relu(self.fc1(self.conv(scaled(images)))))
        return values


class CategoricalActor(nn.Module):
    """The actor of discrete SAC."""

    def __init__(self, actions: int, channels: int = 4) -> None:
        super().__init__()
        self.conv = nature_convolutions(channels)
        self.fc1 = nn.Linear(NATURE_FLAT, NATURE_FEATURES)
        self.fc_logits = nn.Linear(NATURE_FEATURES, actions)
        _kaiming(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Log probabilities (rows, actions)."""
        logits = self.fc_logits(functional.relu(self.fc1(self.conv(scaled(images)))))
        return functional.log_softmax(logits, dim=-1)


def _kaiming(module: nn.Module) -> None:
    """He's normal initial weights, biases zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move a target network towards its twin by the fraction `tau`; 1 is a copy."""
    for old, new in zip(target.parameters(), online.parameters(), strict=True):
        old.copy_(new) if tau == 1.0 else old.lerp_(new, tau)
