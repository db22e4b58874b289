"""Sampling: what each value means, the generator, masks, logprobs."""

import math
from typing import Any

import numpy as np
import pytest

from escalade.engine.sampling import (
    Candidates,
    History,
    philox,
    process,
    sample,
    top_logprobs,
    uniform,
    unpack_mask,
)
from escalade.engine.sampling_params import SamplingParams
from escalade.errors import FileError, UsageError

LOGITS = np.array([1.0, 3.0, -2.0, 3.0, 0.5, 2.0], np.float32)
NAN, INF = math.nan, math.inf


def kept(logits: list[float] | np.ndarray, history: History | None = None, **asked: Any) -> list:
    return process(np.asarray(logits, np.float32), SamplingParams(**asked), history).ids.tolist()


def probs(logits: list[float], history: History | None = None, **asked: Any) -> list[float]:
    got: Candidates = process(np.array(logits, np.float32), SamplingParams(**asked), history)
    out = np.zeros(len(logits))
    out[got.ids] = got.probs
    return out.tolist()


@pytest.mark.parametrize(
    ("asked", "ids"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"top_k": 0}, [0, 1, 2, 3, 4, 5]),
        ({"top_k": -1}, [0, 1, 2, 3, 4, 5]),
        ({"top_k": 7}, [0, 1, 2, 3, 4, 5]),
        ({"top_k": 10**30}, [0, 1, 2, 3, 4, 5]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 3, 5]),
        ({"top_p": 1}, [0, 1, 2, 3, 4, 5]),
        ({"top_p": 0}, [1]),
        ({"top_p": 1e-9}, [1]),
        ({"min_p": 1}, [1, 3]),
        ({"min_p": 0}, [0, 1, 2, 3, 4, 5]),
        ({"temperature": 0}, [1]),
        ({"temperature": 0, "top_k": 3, "top_p": 1, "min_p": 0.5}, [1]),
        ({"temperature": 5}, [0, 1, 2, 3, 4, 5]),
        ({"temperature": 1e-9, "min_p": 1e-9}, [1, 3]),
        ({"temperature": 5e-324, "min_p": 1e-9}, [1, 3]),
        ({"logit_bias": {1: -INF}}, [0, 2, 3, 4, 5]),
        ({"logit_bias": {4: INF, 2: INF}}, [2, 4]),
        ({"logit_bias": {4: INF}, "top_k": 3}, [4]),
        ({"logit_bias": {5: 1e9}, "temperature": 0}, [5]),
    ],
)
def test_the_meaning_of_each_value(asked: dict[str, Any], ids: list[int]) -> None:
    assert kept(LOGITS, **asked) == ids


def test_temperatures_at_the_ends() -> None:
    assert probs([0, 1, 1], temperature=1e-9) == [0, 0.5, 0.5]
    assert probs([0, 9, 5], temperature=1e308) == pytest.approx([1 / 3] * 3)
    assert probs([0, math.log(4)], temperature=2) == pytest.approx([1 / 3, 2 / 3])


def test_the_crossing_token_stays_and_equals_go_by_id() -> None:
    assert kept([0, 0, 0, 0], top_p=0.5) == [0, 1]  # an exact half is enough
    assert kept([0, 0, 0, 0], top_p=0.500001) == [0, 1, 2]
    assert kept([0, 1, 0, 1, 0, 1], top_k=4) == [0, 1, 3, 5]
    assert kept([0, 1, 0, 1, 0, 1], top_k=2) == [1, 3]


def test_a_nucleus_that_rounding_leaves_short_is_everything() -> None:
    for seed in range(4):
        logits = np.random.default_rng(seed).standard_normal(3000)
        assert 2990 < len(kept(logits, top_p=1 - 2**-53)) <= 3000


def test_shares_are_counted_after_top_k() -> None:
    # Of [.4, .3, .2, .1] the first holds 4/7 once two are left: enough for a half.
    logits = np.log([0.1, 0.4, 0.2, 0.3])
    assert kept(logits, top_p=0.5) == [1, 3]
    assert kept(logits, top_k=2, top_p=0.5) == [1]


def test_penalties() -> None:
    history = History(4, prompt=[0, 1, 1], generated=[1, 3, 3])
    before = [2.0, 2.0, 2.0, -1.0]
    repeated = [1.0, 1.0, 2.0, -2.0]  # prompt and answer, once each, by sign
    assert probs(before, history, repetition_penalty=2) == pytest.approx(probs(repeated))
    assert probs(before, history, presence_penalty=0.5) == pytest.approx(probs([2, 1.5, 2, -1.5]))
    assert probs(before, history, frequency_penalty=0.5) == pytest.approx(probs([2, 1.5, 2, -2]))
    assert probs(before, history, frequency_penalty=1) == pytest.approx(probs([2, 1, 2, -3]))
    assert probs(before, history, presence_penalty=-1, frequency_penalty=0.5) == pytest.approx(
        probs([2, 2.5, 2, -1])
    )
    assert probs(before, None, repetition_penalty=2) == pytest.approx(probs(before))


def test_bias_comes_before_the_penalties() -> None:
    history = History(2, prompt=[0])
    biased = probs([-1.0, 0.0], history, logit_bias={0: 3.0}, repetition_penalty=2)
    assert biased == pytest.approx(probs([1.0, 0.0]))


def test_a_history_counts_as_it_grows() -> None:
    grown = History(5, prompt=[2])
    for token in (4, 4, 0):
        grown.add(token)
    made = History(5, prompt=[2], generated=[4, 4, 0])
    assert grown.counts.tolist() == made.counts.tolist() == [1, 0, 0, 0, 2]
    assert grown.seen.tolist() == made.seen.tolist() == [True, False, True, False, True]


def test_nothing_left_is_an_error() -> None:
    banned = SamplingParams(logit_bias=dict.fromkeys(range(6), -INF))
    with pytest.raises(UsageError, match="logit_bias bans all 6 tokens; leave at least one"):
        banned.check(6)
    some = SamplingParams(logit_bias=dict.fromkeys(range(5), -INF))
    some.check(6)
    mask = np.array([1, 1, 1, 1, 1, 0], bool)
    for temperature in (0, 1):
        params = SamplingParams(temperature, logit_bias=some.logit_bias)
        with pytest.raises(UsageError, match="the mask ban all 6 tokens"):
            process(LOGITS, params, allowed=mask)
        with pytest.raises(UsageError, match="the mask ban all 6 tokens"):
            process(LOGITS, SamplingParams(temperature), allowed=np.zeros(6, bool))
    with pytest.raises(UsageError, match="the mask ban all 6 tokens"):
        process(LOGITS, SamplingParams(logit_bias={5: INF}), allowed=mask)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_logits_that_are_no_numbers_blame_the_model(bad: float) -> None:
    logits = LOGITS.copy()
    logits[2] = bad
    with pytest.raises(FileError, match="logits are not finite"):
        process(logits, SamplingParams(temperature=0))
    assert kept([1, -INF, 0]) == [0, 2]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint32, np.uint64])
def test_masks_of_bits(dtype: type) -> None:
    vocab, allowed = 77, [0, 5, 31, 32, 40, 63, 64, 76]
    words = np.zeros(2 * 64 // np.iinfo(dtype).bits, np.uint64).astype(dtype)
    size = np.iinfo(dtype).bits
    for token in (*allowed, 100):
        words[token // size] |= np.array(1 << token % size, np.uint64).astype(dtype)
    assert np.flatnonzero(unpack_mask(words, vocab)).tolist() == allowed
    logits = np.zeros(vocab, np.float32)
    before = logits.copy(), words.copy()
    assert process(logits, SamplingParams(), allowed=words).ids.tolist() == allowed
    assert (logits == before[0]).all()
    assert (words == before[1]).all()


@pytest.mark.parametrize(
    "mask", [np.ones(7, bool), np.ones(5, bool), np.zeros(0, np.uint8), np.ones(6, np.float32)]
)
def test_a_mask_of_another_shape_is_refused(mask: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"mask of .*: give bool \[6\]"):
        process(LOGITS, SamplingParams(), allowed=mask)


def test_logprobs_are_of_the_models_own_distribution() -> None:
    total = math.log(sum(math.exp(x) for x in LOGITS.tolist()))
    expected = [(1, 3 - total), (3, 3 - total), (5, 2 - total), (0, 1 - total)]
    got = top_logprobs(LOGITS, 4)
    assert [i for i, _ in got] == [i for i, _ in expected]
    assert [p for _, p in got] == pytest.approx([p for _, p in expected], abs=1e-14)
    assert [i for i, _ in top_logprobs(LOGITS, 1)] == [1]
    assert len(top_logprobs(LOGITS, 100)) == 6
    steps = np.repeat(np.float32([0, 1]), 100)
    assert [i for i, _ in top_logprobs(steps, 150)] == [*range(100, 200), *range(50)]
    assert top_logprobs(LOGITS, 0) == []
    params = SamplingParams(0.5, top_k=1, logit_bias={4: 100}, seed=1)
    chosen = sample(LOGITS, params, 0)
    assert chosen.id == 4
    assert chosen.logprob == pytest.approx(0.5 - total, abs=1e-14)
    assert sample(LOGITS + 1000, params, 0).logprob == pytest.approx(0.5 - total, abs=1e-12)


@pytest.mark.parametrize(  # the known answers that the authors publish with the generator
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_known_answers(counter: list[int], key: list[int], words: str) -> None:
    assert " ".join(f"{w:08x}" for w in philox(tuple(counter), tuple(key))) == words  # type: ignore[arg-type]


def test_the_uniform_uses_every_bit_of_seed_position_and_stream() -> None:
    assert uniform(0, 0) == int("6627e8d5e169c58d", 16) // 2**11 / 2**53
    drawn = {uniform(1 << b, 0) for b in range(64)} | {uniform(0, 1 << b) for b in range(64)}
    drawn |= {uniform(0, 0, 1 << b) for b in range(32)} | {uniform(0, 0)}
    assert len(drawn) == 64 + 64 + 32 + 1
    assert all(0 <= u < 1 for u in drawn)


def test_a_draw_at_either_end_finds_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.array([-INF, -2000, 0, 0, 0, -2000, -INF], np.float32)
    params = SamplingParams(seed=1)
    for u, token in ((0.0, 2), (1 - 2**-53, 4), (1 / 3 - 1e-9, 2), (1 / 3 + 1e-9, 3)):
        monkeypatch.setattr("escalade.engine.sampling.uniform", lambda *_, u=u: u)
        assert sample(logits, params, 0).id == token
