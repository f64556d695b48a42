"""Drawing in proportion to priorities that change, from one NumPy array.

A tree of sums is what this is usually done with: every draw and every change passes its twenty layers, in Python or in small
NumPy calls. Rejection needs no sums: draw places uniformly and accept each with the probability priority / bound, the bound
being no smaller than any priority. What is accepted has exactly the distribution that is wanted, a change is one assignment,
and the number of attempts is bound / mean, which for the losses of a network is a small number.

Where it is not (few priorities that are hundreds of times the mean), the draw is made by running sums over all priorities, in
blocks: half a millisecond for a million of them, whatever they are. Which of the two is used follows from what was seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_ATTEMPTS = 16384
"""Attempts that a draw may take by rejection: about as long as a draw by sums."""
BLOCK = 1024


class Priorities:
    """`size` priorities, at first 0: those are never drawn."""

    def __init__(self, size: int) -> None:
        self._blocks = np.zeros((-(-size // BLOCK), BLOCK))
        self.values: Floats = self._blocks.reshape(-1)[:size]
        """The priorities themselves, to be read."""
        self._bound = 0.0
        self._accepted = 1.0
        """The share of attempts that were accepted in the latest draw: bitwise the same draws need the same guess."""

    def put(self, place: int, value: float) -> None:
        """Change one priority."""
        self.values[place] = value
        self._bound = max(self._bound, value)

    def set(self, places: Ints, values: Floats) -> None:
        """Change the priorities at these places; where one is named twice, the last value counts."""
        self.values[places] = values
        self._bound = max(self._bound, float(values.max()))

    def draw(self, count: int, among: int, rng: np.random.Generator) -> Ints:
        """`count` of the first `among` places, independent of each other, each in proportion to its priority."""
        found = np.empty(count, np.int64)
        have = attempts = 0
        while have < count:
            left = count - have
            guess = int(1.3 * left / self._accepted) + 16
            if attempts + guess > MOST_ATTEMPTS:
                found[have:] = self._draw_by_sums(left, among, rng)
                break
            position, chance = rng.random((2, guess))
            places = (position * among).astype(np.int64)
            good = places[chance * self._bound < self.values.take(places)]
            found[have : have + len(good)] = good[:left]
            have += len(good)
            attempts += guess
            self._accepted = max(len(good), 0.5) / guess
        return found

    def _draw_by_sums(self, count: int, among: int, rng: np.random.Generator) -> Ints:
        sums = self._blocks.sum(axis=1).cumsum()
        total = float(sums[-1])
        if total <= 0.0:
            raise ValueError("there is nothing to draw: all priorities are 0")
        self._bound = float(self.values.max())
        self._accepted = total / (among * self._bound)
        found = np.empty(count, np.int64)
        for i, mass in enumerate(rng.random(count) * total):
            block = min(int(sums.searchsorted(mass, "right")), len(sums) - 1)
            inner = self._blocks[block].cumsum()
            left = min(mass - (float(sums[block - 1]) if block else 0.0), np.nextafter(inner[-1], 0.0))
            found[i] = block * BLOCK + int(inner.searchsorted(max(left, 0.0), "right"))
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"bound": self._bound, "accepted": self._accepted}

    def load(self, values: npt.ArrayLike, state: dict[str, Any] | None = None) -> None:
        """Set the first `len(values)` priorities and clear the others. With `state`, draws go on as they would have."""
        given = np.asarray(values, np.float64)
        self.values[:] = 0.0
        self.values[: len(given)] = given
        self._bound = float(given.max(initial=0.0)) if state is None else float(state["bound"])
        self._accepted = 1.0 if state is None else float(state["accepted"])
