"""Samples of the replay memory as torch's tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cleanrl_worker.training.replay import Batch


class TensorBatch(NamedTuple):
    """A sample on a device. On the CPU the tensors share the sample's memory, which the next sample overwrites."""

    obs: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    next_obs: torch.Tensor
    terminated: torch.Tensor


def on_device(batch: Batch, device: torch.device) -> TensorBatch:
    return TensorBatch(*(torch.from_numpy(getattr(batch, name)).to(device) for name in TensorBatch._fields))
