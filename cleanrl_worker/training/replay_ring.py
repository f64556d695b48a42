"""A ring of rows in NumPy arrays, saved without copying what has not changed.

Saving: a ring below 64 MB is copied whole into the checkpoint. A larger one is cut into blocks. A full block does not
change until the ring comes round again, so it is written once, as a `Chunk`, and later checkpoints only name it. The
block being filled is copied.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.training.tree import Chunk

COPY_WHOLE_BELOW = 64 * 2**20
BLOCK_BYTES = 16 * 2**20
"""What one chunk file holds at most of one field."""

Shape = tuple[int, ...]
Fields = Mapping[str, tuple[Shape, npt.DTypeLike]]


def ring_bytes(capacity: int, fields: Fields) -> int:
    """The memory a full ring takes."""
    return capacity * sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in fields.values())


class Ring:
    """The last `capacity` rows, one array per field. Whoever writes a row puts it at `added % capacity` and counts it."""

    def __init__(self, capacity: int, fields: Fields) -> None:
        if capacity < 1:
            raise ValueError("a replay buffer needs room for at least one transition")
        self.capacity = capacity
        self.added = 0
        """Rows ever added: the next one goes to `added % capacity`."""
        # zeros are mapped lazily: memory is taken as the ring fills
        self._arrays = {name: np.zeros((capacity, *shape), dtype) for name, (shape, dtype) in fields.items()}
        self._lineage = secrets.token_hex(6)
        widest = max(array[:1].nbytes for array in self._arrays.values())
        self._block = capacity if self.nbytes < COPY_WHOLE_BELOW else max(1, BLOCK_BYTES // widest)
        self._keys: dict[int, tuple[int, str]] = {}
        """For each block that was saved as a chunk: how often it had been filled then, and the name it got."""

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def __getitem__(self, field: str) -> npt.NDArray[Any]:
        """The whole array of a field, in the order of the ring's places."""
        return self._arrays[field]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

    def state_dict(self) -> dict[str, Any]:
        """Everything, as a tree with `Chunk`s for the blocks that can't change any more before they are overwritten."""
        return {
            "capacity": self.capacity,
            "added": self.added,
            "block": self._block,
            "blocks": [self._save_block(start) for start in range(0, len(self), self._block)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved ring. One with another capacity gives its newest rows, in their order."""
        added, capacity = int(state["added"]), int(state["capacity"])
        size, same = min(added, capacity), capacity == self.capacity
        # the place of each saved row here; negative for those that do not fit
        places = np.arange(size)
        if not same:
            places = (places - added) % max(size, 1) - max(size - self.capacity, 0)
        for name, array in self._arrays.items():
            parts = [block["arrays"][name] for block in state["blocks"]]
            if any(part.shape[1:] != array.shape[1:] or part.dtype != array.dtype for part in parts):
                raise ValueError(f"the saved replay has another kind of {name!r} than this environment gives")
            start = 0
            for part in parts:
                stop = start + len(part)
                if same:
                    array[start:stop] = part
                else:
                    kept = places[start:stop] >= 0
                    array[places[start:stop][kept]] = part[kept]
                start = stop
        self.added = added if same else min(size, self.capacity)
        self._keys = {}
        if same and int(state["block"]) == self._block:
            for index, block in enumerate(state["blocks"]):
                if block["key"]:
                    self._keys[index] = (self._fills(index), block["key"])

    def _fills(self, block: int) -> int:
        """How often the ring's writer has left this block behind: it is unchanged as long as this number is."""
        last = min((block + 1) * self._block, self.capacity)
        return (self.added - last) // self.capacity + 1 if self.added >= last else 0

    def _save_block(self, start: int) -> dict[str, Any]:
        stop = min(start + self._block, len(self))
        parts = {name: array[start:stop] for name, array in self._arrays.items()}
        index, position = start // self._block, self.added % self.capacity
        being_filled = start < position < stop or stop < min(start + self._block, self.capacity)
        if self._block == self.capacity or being_filled:
            return {"key": "", "arrays": parts}
        fills, key = self._keys.get(index, (-1, ""))
        if fills != self._fills(index):
            fills = self._fills(index)
            key = f"replay-{self._lineage}-{index}-{fills}"
            self._keys[index] = (fills, key)
        return {"key": key, "arrays": {name: Chunk(f"{key}-{name}", part.copy) for name, part in parts.items()}}
