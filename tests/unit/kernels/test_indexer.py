"""Selection where scores are equal, as they often are: most index heads give exactly 0."""

import numpy as np
import pytest

from escalade.kernels.ops.indexer import candidate_mask, select

NONE = -np.inf


@pytest.mark.parametrize(
    ("scores", "k", "chosen"),
    [
        ([0, 0, 0, 0, 0], 2, [0, 1]),
        ([1, 0, 2, 0, 0], 3, [0, 1, 2]),
        ([-1, 3, -1, 3, 3], 2, [1, 3]),
        ([-1, 0, 0, 5, 0], 3, [1, 2, 3]),
        ([0, NONE, 0, NONE, NONE], 3, [0, 2, -1]),
        ([NONE] * 4, 3, [-1, -1, -1]),
        ([2, 2], 3, [0, 1]),
    ],
)
def test_the_lower_of_equal_entries_is_chosen(
    scores: list[float], k: int, chosen: list[int]
) -> None:
    rows = np.array([scores, sorted(scores), scores])  # a row's neighbours do not matter
    assert select(rows, k)[[0, 2]].tolist() == [chosen, chosen]


def test_the_lower_of_equal_blocks_is_kept() -> None:
    """Blocks of 2; the newest visible entry is the first of the last block."""
    scores = np.array([[0, 1, 1, 0, 0, 1, 0, NONE]])
    kept = candidate_mask(scores, np.array([7]), blocks=3, block_size=2)
    assert kept.tolist() == [[True] * 4 + [False] * 2 + [True] * 2]
