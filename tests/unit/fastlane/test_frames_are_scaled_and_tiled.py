from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cleanrl_worker.fastlane.frames import as_image, shrink, tile


@pytest.mark.parametrize(
    ("count", "rows", "columns"), [(1, 1, 1), (2, 2, 1), (3, 2, 2), (4, 2, 2), (5, 3, 2), (8, 3, 3)]
)
def test_grid_shape(count: int, rows: int, columns: int) -> None:
    pictures = [np.full((2, 3, 3), index + 1, dtype=np.uint8) for index in range(count)]
    grid = tile(pictures)
    assert grid.shape == (2 * rows, 3 * columns, 3)
    cells = grid.reshape(rows, 2, columns, 3, 3)[:, 0, :, 0, 0].flatten().tolist()
    assert cells == [*range(1, count + 1), *[0] * (rows * columns - count)], "row by row, black where none is left"


def test_grid_refuses_mixed_shapes() -> None:
    with pytest.raises(ValueError, match="one shape"):
        tile([np.zeros((2, 2, 3), np.uint8), np.zeros((2, 3, 3), np.uint8)])


def test_shrink_picks_nearest_pixels() -> None:
    image = np.arange(8 * 4 * 3, dtype=np.uint8).reshape(8, 4, 3)
    assert np.array_equal(shrink(image, 4), image[::2, ::2])
    assert shrink(image, 4).flags.c_contiguous
    assert shrink(image, 0) is not None and shrink(image, 0).shape == image.shape
    assert shrink(np.zeros((1000, 1, 3), np.uint8), 10).shape == (10, 1, 3)


@pytest.mark.parametrize(
    ("rendered", "shape"),
    [
        (np.zeros((4, 5, 3)), (4, 5, 3)),
        ([np.zeros((4, 5, 3)), np.zeros((9, 9, 3))], (4, 5, 3)),
        (np.zeros((4, 5)), (4, 5, 3)),
        (np.zeros((4, 5, 4)), (4, 5, 4)),
        (None, None),
        ([], None),
        ("ansi text", None),
        (np.zeros((4, 5, 7)), None),
        (np.zeros(4), None),
        (np.zeros((0, 5, 3)), None),
    ],
)
def test_what_counts_as_a_picture(rendered: Any, shape: tuple[int, ...] | None) -> None:
    image = as_image(rendered)
    assert (image.shape if image is not None else None) == shape
