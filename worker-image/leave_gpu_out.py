"""Remove the CUDA libraries that torch does not load on a machine without a GPU; run by the image's own Python.

PyPI's torch for Linux is linked against CUDA, so some of its libraries have to stay: those that a process has mapped
once torch is imported and has trained a small network. The rest (engines that cuDNN opens on demand, solvers, headers)
is most of the bytes. A second process proves that torch still works.
"""

import subprocess
import sys
from pathlib import Path

TRAIN = """
import torch, torch.distributed, torch.multiprocessing
from torch import nn
network = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 8), nn.LayerNorm(8))
states = (torch.zeros(1, 3, 8), torch.zeros(1, 3, 8))
outputs, _ = nn.LSTM(8, 8)(network(torch.randn(6, 4, 16, 16)).reshape(2, 3, 8), states)
loss = nn.functional.smooth_l1_loss(outputs, torch.zeros_like(outputs))
optimizer = torch.optim.Adam(network.parameters())
loss.backward()
optimizer.step()
torch.linalg.solve(torch.eye(3), torch.ones(3))
torch.fft.fft(torch.randn(8))
assert not torch.cuda.is_available()
print(open("/proc/self/maps").read())
"""


def mapped() -> set[Path]:
    """The files that a process has mapped once it has trained a small network."""
    answer = subprocess.run([sys.executable, "-c", TRAIN], capture_output=True, text=True, check=True)
    return {Path(line.split(maxsplit=5)[5]).resolve() for line in answer.stdout.splitlines() if "/" in line}


def main() -> None:
    """Remove, prove, and say how much it was."""
    site = Path(sys.prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    needed, saved = mapped(), 0
    for path in sorted((site / "nvidia").rglob("*")):
        if path.suffix == ".py" or not (path.is_file() or path.is_symlink()) or path.resolve() in needed:
            continue
        saved += path.lstat().st_size
        path.unlink()
    mapped()
    print(f"left {saved / 1e9:.2f} GB of CUDA out")


if __name__ == "__main__":
    main()
