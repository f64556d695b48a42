"""Under torchrun, two processes with half of a minibatch each have the gradient of one process with all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cleanrl_worker.agents.atari import NatureAgent
from cleanrl_worker.algorithms.ppo_atari_multigpu import Args
from cleanrl_worker.training.ppo_torch import FlatAdam, ppo_loss

ROWS = 12
SHARE = """
import sys
import numpy as np
import torch
from cleanrl_worker.agents.atari import NatureAgent
from cleanrl_worker.algorithms.ppo_atari_multigpu import Args, minibatch_loss
from cleanrl_worker.training.distributed import Group
from cleanrl_worker.training.ppo_torch import FlatAdam

folder = sys.argv[1]
group = Group("gloo")
assert group.world == 2
torch.manual_seed(group.rank)  # other weights in each: they take rank 0's
agent = NatureAgent(4)
optimizer = FlatAdam(agent)
group.share_(optimizer.flat)
data = np.load(f"{folder}/minibatch.npz")
mine = slice(group.rank, None, 2)
columns = [torch.from_numpy(data[name][mine]) for name in ("actions", "logprobs", "values", "advantages", "returns")]
optimizer.zero_grad()
minibatch_loss(Args(), group, agent, torch.from_numpy(data["obs"][mine]), columns).loss.backward()
group.mean_(optimizer.grad)
gradient = optimizer.grad.clone()
optimizer.step(1e-3, 0.5)
np.savez(f"{folder}/rank{group.rank}.npz", gradient=gradient.numpy(), flat=optimizer.flat.numpy())
assert group.told("yes" if group.rank == 0 else "no") == "yes"
assert group.gathered(group.rank) == ([0, 1] if group.rank == 0 else [])
group.close()
"""


@pytest.mark.integration
def test_gradients_equal_one_processes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = {
        "obs": rng.integers(0, 256, (ROWS, 4, 84, 84), dtype=np.uint8),
        "actions": rng.integers(0, 4, ROWS),
        "logprobs": rng.normal(-1.4, 0.1, ROWS).astype(np.float32),
        "values": rng.normal(size=ROWS).astype(np.float32),
        "advantages": rng.normal(2.0, 3.0, ROWS).astype(np.float32),
        "returns": rng.normal(size=ROWS).astype(np.float32),
    }
    np.savez(tmp_path / "minibatch.npz", **data)
    (tmp_path / "share.py").write_text(SHARE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc_per_node=2"]
    done = subprocess.run(
        [*command, str(tmp_path / "share.py"), str(tmp_path)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]

    torch.manual_seed(0)
    agent = NatureAgent(4)
    optimizer = FlatAdam(agent)
    columns = [torch.from_numpy(data[name]) for name in ("actions", "logprobs", "values", "advantages", "returns")]
    logits, values = agent(torch.from_numpy(data["obs"]))
    ppo_loss(logits, values, *columns, Args()).loss.backward()
    expected = optimizer.grad.clone().numpy()
    optimizer.step(1e-3, 0.5)

    first, second = (np.load(tmp_path / f"rank{rank}.npz") for rank in (0, 1))
    np.testing.assert_array_equal(first["flat"], second["flat"])
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(first["gradient"], expected, rtol=1e-3, atol=2e-6)
