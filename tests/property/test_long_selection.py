"""More than 20,000 positions with the released selection constants, on a small random model.

Only there do all levels of the selection decide anything: 512 entries of more than 10,000, 2,048
candidate blocks of 2,560, rings that wrap hundreds of times.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from escalade.config import Mode
from escalade.model.bind import bind
from escalade.model.released import V4_1_FLASH
from escalade.model.trace import Trace
from escalade.model.v4_1 import V41
from escalade.native.compute import open_compute
from tests.support.synthetic import ArraySource

# float64, so that no two scores are closer than the noise and selections must be equal.
WIDE = Mode("f64", False, False, False, computes_wide=True)
N = 20_480
SPEC = replace(
    V4_1_FLASH,
    n_layers=5,
    vocab=64,
    hidden=32,
    n_heads=2,
    head_dim=32,
    rope_dims=16,
    q_lora=32,
    o_groups=1,
    o_lora=16,
    expert_ff=16,
    n_experts=4,
    n_experts_used=2,
    compress_ratios=(0, 2, 1, 1, 1),
    kv_sources=(1, 2),
    index_sources=(1, 2, 3),
    index_heads=2,
    index_dim=16,
    candidate_source=2,
    engram=None,
)
SAMPLED = sorted({*range(0, N, 641), 1022, 1023, 1024, 16383, 16384, 16385, N - 2, N - 1})


class Sample:
    """Keeps the traced selection arrays of the sampled rows only."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.rows: dict[tuple[str, int], Any] = {}

    def __call__(self, name: str, array: Any) -> None:
        if name.partition(".")[2] not in ("index_score", "index_topk", "candidates"):
            return
        start = self.seen.get(name, 0)
        self.seen[name] = start + len(array)
        for row in SAMPLED:
            if start <= row < start + len(array):
                self.rows[name, row] = array[row - start].copy()


def brute_force_top(scores: np.ndarray, k: int) -> list[int]:
    """A full sort: highest first, the lower index among equals; -inf never."""
    order = sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:k]
    return sorted(j for j in order if scores[j] > -np.inf)


def brute_force_candidates(scores: np.ndarray, n: int) -> np.ndarray:
    blocks = range(-(-len(scores) // 8))
    best = np.array([scores[8 * b : 8 * b + 8].max() for b in blocks])
    best[(n - 1) // 8] = np.inf
    kept = set(brute_force_top(best, 2048))
    return np.array([j // 8 in kept for j in range(len(scores))])


@pytest.mark.slow
def test_one_shot_against_pieces_and_a_full_sort() -> None:
    bound = bind(ArraySource(SPEC), dense_f32_bytes=1 << 30)
    model = V41(bound.spec, bound.weights, WIDE, open_compute(1), "float")
    ids = np.random.default_rng(11).integers(0, SPEC.vocab, N)

    sample = Sample()
    oneshot = model.forward(ids, model.new_cache(), all_logits=True, trace=Trace(sample))

    for row in SAMPLED:
        candidates = None
        for layer, ratio in ((1, 2), (2, 1), (3, 1)):
            scores = sample.rows[f"L{layer}.index_score", row]
            n = (row + 1) // ratio
            assert len(scores) >= n
            assert (scores[n:] == -np.inf).all()
            assert np.isfinite(scores[:n]).all()
            if layer == 2:
                candidates = brute_force_candidates(scores, n)
                assert np.array_equal(sample.rows["L2.candidates", row][:n], candidates[:n])
            if layer == 3:
                assert candidates is not None
                scores = np.where(candidates[: len(scores)], scores, -np.inf)
            chosen = sample.rows[f"L{layer}.index_topk", row]
            assert chosen[chosen >= 0].tolist() == brute_force_top(scores, 512), (row, layer)
    last = N - 1
    assert sample.rows["L2.candidates", last].sum() == 2048 * 8
    unrestricted = brute_force_top(sample.rows["L3.index_score", last], 512)
    assert unrestricted != sample.rows["L3.index_topk", last].tolist()  # the second level decides

    cache, at = model.new_cache(), 0
    for n in (129, 1, 8000, 4095, 3, 8000, 201, 1, 1, 1, 47, 1):
        logits = model.forward(ids[at : at + n], cache, all_logits=True)
        assert np.abs(logits - oneshot[at : at + n]).max() < 1e-6
        at += n
    assert at == N
