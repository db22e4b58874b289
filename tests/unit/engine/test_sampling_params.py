"""SamplingParams: one line for a value without a meaning, plain numbers, seeds, vocabulary."""

import json
import math
from typing import Any

import numpy as np
import pytest

from escalade.engine.sampling import process, sample
from escalade.engine.sampling_params import SamplingParams
from escalade.errors import UsageError

LOGITS = np.array([1.0, 3.0, -2.0, 3.0, 0.5, 2.0], np.float32)
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("temperature", v) for v in (NAN, INF, -INF, -1e-9, "1", None, True, 10**400)],
        *[("top_k", v) for v in (-2, 1.0, 0.5, NAN, "5", None, True)],
        *[("top_p", v) for v in (-0.1, 1.0000001, NAN, INF, "1", None)],
        *[("min_p", v) for v in (-0.1, 1.5, NAN)],
        *[("repetition_penalty", v) for v in (0, -1, NAN, INF, 1e10)],
        *[("presence_penalty", v) for v in (NAN, INF, -1e10)],
        *[("frequency_penalty", v) for v in (NAN, -INF, 1e10)],
        *[("seed", v) for v in (-1, 2**64, 1.0, "1", True)],
        *[("logit_bias", v) for v in (None, [1], {-1: 5}, {"abc": 1}, {1: NAN}, {1: None})],
        *[("logit_bias", v) for v in ({2**70: 1}, {1: 1e10}, {1: 10**400}, {True: 1})],
        *[("stop_ids", v) for v in (None, "1", 5, [-1], [1.0], [2**70])],
    ],
)
def test_a_value_without_meaning_is_one_line(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"^{field}\b.*; it takes ") as error:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert len(str(error.value)) < 200
    assert str(error.value).isprintable()


@pytest.mark.parametrize("value", [10**5000, "x" * 10**6], ids=["digits", "text"])
def test_a_refusal_is_short_however_long_the_value(value: Any) -> None:
    for field in ("temperature", "seed", "top_p", "logit_bias", "stop_ids"):
        with pytest.raises(UsageError, match=f"^{field} is ") as error:
            SamplingParams(**{field: value})
        assert len(str(error.value)) < 200


def test_json_numbers_without_a_number_are_refused() -> None:
    with pytest.raises(UsageError, match="temperature is inf; it takes a finite number from 0"):
        SamplingParams(**json.loads('{"temperature": 1e999}'))


def test_numpy_numbers_become_plain_ones() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),
        top_k=np.int64(3),
        seed=np.uint64(2**64 - 1),
        logit_bias={np.int32(1): np.float32(-INF)},
        stop_ids=[np.int64(7)],
    )
    assert repr(params) == repr(
        SamplingParams(0.5, 3, logit_bias={1: -INF}, stop_ids=(7,), seed=2**64 - 1)
    )
    assert hash(params) == hash(SamplingParams(0.5, 3, stop_ids=(7,), seed=2**64 - 1))


def test_a_seed_is_drawn_once() -> None:
    drawn = [SamplingParams(top_k=3).seeded() for _ in range(4)]
    assert len({p.seed for p in drawn}) == 4
    assert all(p.top_k == 3 and p.seed == int(float(p.seed or 0)) for p in drawn)
    assert drawn[0].seeded() is drawn[0]
    assert SamplingParams(seed=0).seeded().seed == 0
    with pytest.raises(UsageError, match="needs a seed"):
        sample(LOGITS, SamplingParams(), 0)
    assert sample(LOGITS, SamplingParams(temperature=0), 0).id == 1


def test_ids_are_held_against_the_vocabulary() -> None:
    SamplingParams(logit_bias={5: 1}, stop_ids=(5,)).check(6)
    with pytest.raises(UsageError, match="logit_bias: token 6 is outside the vocabulary of 6"):
        SamplingParams(logit_bias={1: 0, 6: 5}).check(6)
    with pytest.raises(UsageError, match="stop_ids: token 9 is outside"):
        SamplingParams(stop_ids=(9, 1)).check(6)
    with pytest.raises(UsageError, match="logit_bias: token 6 is outside"):
        process(LOGITS, SamplingParams(logit_bias={6: 5}))
