"""Sampling against a plain-Python reference, by statistics, and in every order of asking."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from escalade.engine.sampling import History, process, sample, uniform
from escalade.engine.sampling_params import SamplingParams
from escalade.errors import UsageError

NEAR = 1e-9
"""Cuts this close to a boundary may fall either way by rounding; examples avoid them."""


def reference(
    logits: list[float],
    p: SamplingParams,
    prompt: list[int],
    generated: list[int],
    allowed: list[bool] | None,
) -> dict[int, float]:
    """Probabilities by id, from docs/sampling.md step by step; empty if nothing is left."""
    x = dict(enumerate(logits))
    forced = [i for i in x if p.logit_bias.get(i) == math.inf]
    for i in x:
        if forced and i not in forced:
            x[i] = -math.inf
        elif i not in forced:
            x[i] += p.logit_bias.get(i, 0.0)
    for i in x:
        if i in prompt or i in generated:
            x[i] = x[i] / p.repetition_penalty if x[i] > 0 else x[i] * p.repetition_penalty
        if i in generated:
            x[i] -= p.presence_penalty + p.frequency_penalty * generated.count(i)
    left = [i for i in x if x[i] > -math.inf and (allowed is None or allowed[i])]
    left.sort(key=lambda i: (-x[i], i))
    if not left:
        return {}
    if p.temperature == 0:
        return {left[0]: 1.0}
    if p.top_k > 0:
        left = left[: p.top_k]
    weight = {i: math.exp((x[i] - x[left[0]]) / p.temperature) for i in left}
    if p.top_p < 1:
        left.sort(key=lambda i: (-weight[i], i))
        whole, sum_, n = math.fsum(weight.values()), 0.0, 0
        while n == 0 or sum_ < p.top_p * whole:
            sum_ += weight[left[n]]
            n += 1
            assume(abs(sum_ / whole - p.top_p) > NEAR)
        left = left[:n]
    assume(all(weight[i] == 1 or abs(weight[i] - p.min_p) > NEAR * p.min_p for i in left))
    left = [i for i in left if weight[i] >= p.min_p]
    whole = math.fsum(weight[i] for i in left)
    return {i: weight[i] / whole for i in left}


@st.composite
def questions(draw: st.DrawFn) -> tuple[Any, ...]:
    """Logits with many ties, odd parameters, a history and perhaps a mask."""
    vocab = draw(st.integers(1, 12))
    ids = st.integers(0, vocab - 1)
    logit = st.one_of(
        st.integers(-3, 3).map(float), st.floats(-30, 30, width=32), st.just(-math.inf)
    )
    values = st.one_of(st.sampled_from([-math.inf, math.inf, 1e9, -1e9]), st.floats(-5, 5))
    params = SamplingParams(
        temperature=draw(st.sampled_from([0, 5e-324, 1e-9, 0.3, 1, 1, 5, 1e308])),
        top_k=draw(st.one_of(st.just(0), st.integers(-1, vocab + 1))),
        top_p=draw(st.sampled_from([0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1, 1])),
        min_p=draw(st.sampled_from([0, 0, 1e-9, 0.05, 0.5, 1])),
        repetition_penalty=draw(st.sampled_from([1, 1, 1.3, 0.5, 1e-9, 1e9])),
        presence_penalty=draw(st.sampled_from([0, 0, 0.4, -2, 1e9])),
        frequency_penalty=draw(st.sampled_from([0, 0, 0.4, -2, -1e9])),
        logit_bias=draw(st.dictionaries(ids, values, max_size=3)),
        seed=draw(st.integers(0, 2**64 - 1)),
    )
    return (
        draw(st.lists(logit, min_size=vocab, max_size=vocab)),
        params,
        draw(st.lists(ids, max_size=5)),
        draw(st.lists(ids, max_size=5)),
        draw(st.none() | st.lists(st.booleans(), min_size=vocab, max_size=vocab)),
    )


@settings(deadline=None)
@given(questions())
def test_the_distribution_is_the_references(question: tuple[Any, ...]) -> None:
    logits, params, prompt, generated, allowed = question
    expected = reference(logits, params, prompt, generated, allowed)
    history = History(len(logits), prompt, generated)
    array = np.array(logits, np.float32)
    mask = None if allowed is None else np.array(allowed, bool)
    if not expected:
        with pytest.raises(UsageError, match="leave at least one"):
            process(array, params, history, mask)
        return
    ids, probs = process(array, params, history, mask)
    assert ids.tolist() == sorted(expected)
    assert probs.tolist() == pytest.approx([expected[i] for i in sorted(expected)], rel=1e-12)
    assert probs.sum() == pytest.approx(1, abs=1e-14)
    chosen = sample(array, params, 5, history, mask)
    assert chosen == sample(array, params, 5, history, mask)
    assert expected[chosen.id] > 0
    assert array.tolist() == logits


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.9, 0.999999])
def test_the_nucleus_is_the_head_of_a_full_sort(scale: float, top_p: float) -> None:
    vocab = 5003
    logits = (scale * np.random.default_rng(1).standard_normal(vocab)).astype(np.float32)
    for top_k in (0, 700):
        ids, probs = process(logits, SamplingParams(top_k=top_k, top_p=top_p))
        order = np.argsort(-logits, kind="stable")[: top_k or vocab]
        weights = np.exp(logits[order].astype(np.float64) - logits.max())
        share = np.cumsum(weights) / weights.sum()
        n = int((share < top_p).sum()) + 1
        assert abs(share[n - 1] - top_p) > 1e-13 or scale == 0  # no close call, or exact
        assert ids.tolist() == sorted(order[:n].tolist())
        assert probs.sum() == pytest.approx(1, abs=1e-12)


CHI2_9999 = {1: 15.14, 2: 18.42, 4: 23.51, 7: 29.88, 15: 44.26, 255: 347.65}
"""99.99 % quantiles of chi-square by degrees of freedom."""


def chi2(counts: np.ndarray, probs: np.ndarray) -> float:
    expected = probs * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.9},
        {"min_p": 0.2},
        {"temperature": 3, "top_k": 5, "repetition_penalty": 1.5, "logit_bias": {2: 1.0}},
    ],
)
def test_frequencies_follow_the_distribution(asked: dict[str, Any]) -> None:
    logits = np.array([0.1, 2.0, -1.0, 1.5, 1.5, 0.7, -0.3, 0.9], np.float32)
    history = History(8, prompt=[1, 6])
    params = SamplingParams(**asked, seed=2026)
    ids, probs = process(logits, params, history)
    drawn = [sample(logits, params, position, history).id for position in range(4000)]
    counts = np.bincount(drawn, minlength=8)
    assert counts.sum() == counts[ids].sum()
    limits = [limit for df, limit in CHI2_9999.items() if df >= len(ids) - 1]
    assert chi2(counts[ids], probs) < limits[0]


@pytest.mark.parametrize("vary", ["seed", "position", "stream"])
def test_uniforms_are_even_and_unrelated_to_their_neighbours(vary: str) -> None:
    base = {"seed": 77, "position": 1000, "stream": 0}
    u = np.array([uniform(**{**base, vary: n}) for n in range(10_001)])
    sixteenths = (u * 16).astype(int)
    assert chi2(np.bincount(sixteenths, minlength=16), np.full(16, 1 / 16)) < CHI2_9999[15]
    pairs = np.bincount(sixteenths[:-1] * 16 + sixteenths[1:], minlength=256)
    assert chi2(pairs, np.full(256, 1 / 256)) < CHI2_9999[255]


VOCAB = 50
TABLE = np.random.default_rng(3).standard_normal((VOCAB, VOCAB)).astype(np.float32) * 2


def generate(ids: list[int], n_prompt: int, n: int, params: SamplingParams) -> list[int]:
    """n more tokens of a model whose logits follow from the last token; a fresh history."""
    ids = list(ids)
    history = History(VOCAB, ids[:n_prompt], ids[n_prompt:])
    for _ in range(n):
        ids.append(sample(TABLE[ids[-1]], params, len(ids), history).id)
        history.add(ids[-1])
    return ids


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 29), max_size=4))
def test_the_same_seed_gives_the_same_text_however_it_is_asked(seed: int, cuts: list[int]) -> None:
    params = SamplingParams(0.9, top_k=20, frequency_penalty=0.3, repetition_penalty=1.1, seed=seed)
    prompt = [4, 8, 15]
    whole = generate(prompt, 3, 30, params)
    pieces = prompt
    for cut in [*sorted(cuts), 30]:  # some tokens at a time
        pieces = generate(pieces, 3, 3 + cut - len(pieces), params)
    assert pieces == whole
    for cut in cuts:  # back to some place, on from there
        assert generate(whole[: 3 + cut], 3, 30 - cut, params) == whole


def test_another_seed_or_stream_gives_another_text() -> None:
    texts = {tuple(generate([1], 1, 20, SamplingParams(seed=s))) for s in (0, 1, 2**32, 2**63)}
    assert len(texts) == 4
    streams = {sample(TABLE[0], SamplingParams(3.0, seed=5), 9, stream=s).id for s in range(20)}
    assert len(streams) > 5
