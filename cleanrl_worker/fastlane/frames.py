"""From what environments render to the one picture that goes into the ring."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
_SURFARRAY = "pygame.surfarray"


def as_image(rendered: Any) -> Image | None:
    """A height x width x channels picture of what `render` returned, or None when that is not a picture.

    A list means one frame per call since the last render: its first item counts. Gray pictures get three channels.
    """
    if isinstance(rendered, list | tuple):
        rendered = rendered[0] if rendered else None
    if rendered is None or isinstance(rendered, str):
        return None
    image = np.asarray(rendered)
    if image.ndim == 2:
        image = image[:, :, None]
    if image.ndim != 3 or image.shape[2] not in (1, 3, 4) or 0 in image.shape:
        return None
    if image.dtype != np.uint8:
        image = image.astype(np.uint8)
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image


def shrink(image: Image, max_dim: int) -> Image:
    """Nearest-neighbour copy whose longer side is at most max_dim, contiguous; 0 means any size."""
    height, width = image.shape[:2]
    longest = max(height, width)
    if max_dim <= 0 or longest <= max_dim:
        return np.ascontiguousarray(image)
    rows = _picks(height, max(1, height * max_dim // longest))
    columns = _picks(width, max(1, width * max_dim // longest))
    return image.take(rows, axis=0).take(columns, axis=1)  # several times faster than one fancy index


def tile(images: Sequence[Image]) -> Image:
    """One picture of several of the same shape: ceil(sqrt(n)) rows, filled row by row, black where none is left."""
    if len({image.shape for image in images}) != 1:
        raise ValueError(f"A grid needs frames of one shape, got {[image.shape for image in images]}")
    rows = math.ceil(math.sqrt(len(images)))
    columns = math.ceil(len(images) / rows)
    height, width, channels = images[0].shape
    grid = np.zeros((rows * height, columns * width, channels), dtype=np.uint8)
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        grid[row * height : (row + 1) * height, column * width : (column + 1) * width] = image
    return grid


def render_small(render: Callable[[], Any], max_dim: int) -> Any:
    """Call `render`; environments that draw with pygame copy only the pixels that `shrink` could still need.

    Copying the 600 x 400 surface out of pygame is three quarters of what a CartPole frame costs. Every n-th pixel of it
    is enough, with the largest n that leaves max_dim pixels on the longer side.
    """
    pygame_was_there = _SURFARRAY in sys.modules
    with _small_surfaces(max_dim):
        rendered = render()
    if not pygame_was_there and _SURFARRAY in sys.modules:
        # This first call imported pygame, too late for small surfaces. Again, so that all frames have one size.
        with _small_surfaces(max_dim):
            rendered = render()
    return rendered


@contextmanager
def _small_surfaces(max_dim: int) -> Iterator[None]:
    surfarray: Any = sys.modules.get(_SURFARRAY)
    if surfarray is None or max_dim <= 0:
        yield
        return
    original = surfarray.pixels3d

    def pixels3d(surface: Any) -> Any:
        pixels = original(surface)
        step = max(1, max(pixels.shape[:2]) // max_dim)
        return pixels[::step, ::step]

    surfarray.pixels3d = pixels3d
    try:
        yield
    finally:
        surfarray.pixels3d = original


def render_slots(envs: Any, slots: Sequence[int]) -> list[Any]:
    """What the chosen environments of a gymnasium vector environment render, [] where the library cannot.

    Works, through vector wrappers, for SyncVectorEnv and anything with a list `envs` of environments made with an
    rgb_array render mode. Only the chosen ones render; `VectorEnv.render` would render all.
    """
    members = getattr(getattr(envs, "unwrapped", envs), "envs", None)
    if not isinstance(members, list | tuple):
        return []
    return [
        members[slot].render()
        for slot in slots
        if slot < len(members) and getattr(members[slot], "render_mode", None) in ("rgb_array", "rgb_array_list")
    ]


@lru_cache(maxsize=64)
def _picks(size: int, wanted: int) -> NDArray[np.intp]:
    return np.arange(wanted, dtype=np.intp) * size // wanted
