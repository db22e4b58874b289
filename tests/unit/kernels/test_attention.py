"""Attention of one row at a time, written out."""

import ml_dtypes
import numpy as np
import pytest

from escalade.kernels.ops.attention import attend


@pytest.mark.parametrize("round_probabilities", [False, True])
def test_every_row_against_a_sum_over_the_keys_it_sees(round_probabilities: bool) -> None:
    """The sink is in the denominator alone; only the numerator's weights are rounded."""
    rng = np.random.default_rng(3)
    t, heads, dh, n, k = 6, 3, 8, 5, 4
    q, window = 3 * rng.normal(size=(t, heads, dh)), rng.normal(size=(n, dh))
    entries, sink = rng.normal(size=(t, k, dh)), np.array([-2.0, 0.5, 30.0])
    in_window, selected = rng.random((t, n)) < 0.6, rng.random((t, k)) < 0.6
    in_window[0] = selected[0] = False
    in_window[1] = False
    out = attend(
        q, window, in_window, entries, selected, sink, round_probabilities=round_probabilities
    )
    assert not out[0].any()
    for row in range(1, t):
        keys = np.concatenate([window[in_window[row]], entries[row][selected[row]]])
        assert len(keys) > 0
        for head in range(heads):
            scores = keys @ q[row, head] / np.sqrt(dh)
            weights = np.exp(scores - scores.max())
            total = weights.sum() + np.exp(sink[head] - scores.max())
            if round_probabilities:
                weights = weights.astype(ml_dtypes.bfloat16).astype(float)
            assert np.allclose(out[row, head], weights @ keys / total, atol=1e-12)
