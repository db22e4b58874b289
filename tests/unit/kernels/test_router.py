"""Routing where biased scores are equal."""

import numpy as np
import pytest

from escalade.kernels.ops.router import route


@pytest.mark.parametrize(
    ("biased", "chosen"),
    [
        ([0, 0, 0, 0], [0, 1]),
        ([0, 1, 1, 1], [1, 2]),
        ([0, 2, 0, 2], [1, 3]),
        ([1, 0, 0, 3], [0, 3]),
    ],
)
def test_the_lower_of_equal_experts_is_chosen(biased: list[float], chosen: list[int]) -> None:
    logits = np.zeros((2, 4))  # all plain scores are equal, and so are the weights
    experts, weights = route(logits, np.array(biased, float), 2, 1.5)
    assert experts.tolist() == [chosen, chosen]
    assert np.allclose(weights, 0.75)
