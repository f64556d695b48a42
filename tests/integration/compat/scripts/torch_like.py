"""What scripts do with torch: writers under runs/, modules on a device, models saved into new folders and a writer's."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter("runs/some_run")
writer.add_scalar("charts/episodic_return", 7.0, 1)
for agent in range(2):
    with SummaryWriter(log_dir=Path.cwd() / "runs" / f"agent{agent}" / "losses") as losses:
        losses.add_scalar("losses/value_loss", float(agent), 1)
Path("runs/some_run/not_by_torch.model").write_bytes(b"weights")
actor = nn.Linear(2, 1).to("cpu")
critic = nn.Sequential(nn.Linear(2, 3)).to("cpu")
print("weights", actor.weight.sum().item(), critic[0].weight.sum().item())
torch.optim.SGD(actor.parameters(), lr=0.0).step()
print("learned")
if len(sys.argv) > 1:
    with torch.no_grad():
        actor.weight.fill_(float(sys.argv[1]))
        critic[0].weight.fill_(float(sys.argv[1]))
    torch.save((actor.state_dict(), critic.state_dict()), "runs/some_run/deep/model.pt")
writer.close()
