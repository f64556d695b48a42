"""Several processes that train one network together, each with environments of its own.

Rank 0 is the run: it logs, takes checkpoints, obeys requests. The others (`Peer`) only collect and learn, and hand rank 0 their
state when a checkpoint may be due, which is between two rollouts. They are started by torchrun, or by rank 0 itself.
"""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported by name

from cleanrl_worker import link, processes
from cleanrl_worker.training.envs import Envs, Step

PEER_OF = "CLEANRL_PEER_OF"
TO_JOIN = datetime.timedelta(minutes=10)
"""To start, and for gradients: all processes are at the same place then."""
PATIENCE = datetime.timedelta(days=30)
"""A pause may be long. A process that died is noticed by its closed connection, not by waiting."""


class Group:
    """The processes of a run. With one process everything is local, and torch's process group is not needed."""

    def __init__(self, backend: str = "gloo", peers: tuple[str, list[str], int] | None = None) -> None:
        """Join what torchrun started. `peers`, as (module, flags, count), has this process start the others itself."""
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._started: list[subprocess.Popen[bytes]] = []
        self._control: Any = None
        if peers is not None and self.world == 1 and peers[2] > 1:
            module, flags, self.world = peers
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            store = TCPStore("127.0.0.1", 0, self.world, is_master=True, wait_for_workers=False)
            self._started = [_start(module, flags, rank, self.world, store.port) for rank in range(1, self.world)]
            dist.init_process_group(backend, store=store, rank=0, world_size=self.world, timeout=TO_JOIN)
        elif PEER_OF in os.environ:
            store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), self.world, is_master=False)
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, timeout=TO_JOIN)
        elif self.world > 1:
            dist.init_process_group(backend, timeout=TO_JOIN)
        if self.world > 1:  # objects travel over the CPU, whatever gradients do
            self._control = dist.new_group(backend="gloo", timeout=PATIENCE)

    def mean_(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by its mean over all processes."""
        if self.world > 1:
            dist.all_reduce(tensor)
            tensor.div_(self.world)

    def standardised(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with zero mean and unit deviation over the elements of all processes."""
        total = torch.stack((tensor.new_tensor(tensor.numel()), tensor.sum()))
        if self.world > 1:
            dist.all_reduce(total)
        centred = tensor - total[1] / total[0]
        squares = (centred**2).sum()
        if self.world > 1:
            dist.all_reduce(squares)
        return centred / ((squares / (total[0] - 1)).sqrt() + 1e-8)

    def share_(self, tensor: torch.Tensor) -> None:
        """Give every process rank 0's values."""
        if self.world > 1:
            dist.broadcast(tensor, 0)

    def told(self, value: Any) -> Any:
        """What rank 0 says."""
        box = [value]
        if self.world > 1:
            dist.broadcast_object_list(box, 0, group=self._control)
        return box[0]

    def gathered(self, value: Any) -> list[Any]:
        """What every process says, at rank 0; nothing elsewhere."""
        if self.world == 1:
            return [value]
        box: list[Any] | None = [None] * self.world if self.rank == 0 else None
        dist.gather_object(value, box, 0, group=self._control)
        return box or []

    def close(self) -> None:
        """Leave. Peers that were started here have ended by themselves, or lose their connection and end now."""
        if self.world > 1:
            dist.destroy_process_group()
        for process in self._started:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(module: str, flags: list[str], rank: int, world: int, port: int) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if name != link.ENV_FD}
    environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), PEER_OF: str(os.getpid())}
    environ["MASTER_PORT"] = str(port)
    return subprocess.Popen([sys.executable, "-m", module, *flags], env=environ)


class Peer:
    """What `Run` is for rank 0, for the others: they say and save nothing, and stop when rank 0 says so."""

    def __init__(self, args: Any, rank: int) -> None:
        self.args = args
        self.step = 0
        self.rng = np.random.default_rng([args.seed, rank])
        self._first_seed = args.seed + rank * args.local_num_envs
        self.envs: Any = None
        if os.environ.get(PEER_OF, "").isdigit():
            processes.die_with(int(os.environ[PEER_OF]))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    def make_envs(self, num_envs: int, **options: Any) -> Envs:
        envs = self.envs = Envs.make(self.args.env_id, num_envs, **options)
        return envs

    def keep(self, **_things: Any) -> None: ...

    def start(self) -> None:
        self.envs.reset(self._first_seed)

    def count(self, step: Step, processes: int = 1) -> None:
        self.step += len(step.rewards) * processes

    def attend(self) -> None: ...

    def guard(self, **_values: float) -> None: ...

    def scalars(self, _values: Any, step: int | None = None) -> None: ...

    def note(self, _message: str, level: str = "info") -> None: ...

    @property
    def sps(self) -> int:
        return 0

    def finish(self, model: Any = None) -> None: ...


def rank_state(envs: Envs, rng: np.random.Generator) -> dict[str, Any]:
    """What only this process has, as plain data."""
    return {"envs": envs.state_dict(), "rng": dict(rng.bit_generator.state), "torch": torch.get_rng_state().numpy()}


def restore_rank(state: dict[str, Any], envs: Envs, rng: np.random.Generator) -> None:
    envs.load_state_dict(state["envs"])
    rng.bit_generator.state = state["rng"]
    torch.set_rng_state(torch.from_numpy(np.array(state["torch"])))
