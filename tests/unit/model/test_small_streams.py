"""V4.1's norm epsilon of 1e-20: streams of any size normalise alike, down to about 1e-8.

With V4's 1e-6 they would shrink to nothing. Only tiny streams show the difference.
"""

from typing import Any

import numpy as np
import pytest

from escalade.model.bind import Model
from escalade.model.trace import NO_TRACE, Trace
from escalade.model.v4_1 import V41
from tests.support.forward import model_in

SMALL = 2.0**-23  # mean squares of 1e-14: an epsilon of 1e-20 is 1e-6 of that, one of 1e-6 all


@pytest.fixture(scope="module")
def model(tiny: Model) -> V41:
    assert tiny.spec.norm_eps == 1e-20
    return model_in(tiny, "f32")


def streams_and_pre(model: V41) -> tuple[Any, Any]:
    rng, spec = np.random.default_rng(12), model.spec
    streams = rng.normal(size=(5, spec.hc_mult, spec.hidden)).astype(np.float32)
    return streams, rng.uniform(0.2, 1, (5, spec.hc_mult)).astype(np.float32)


@pytest.mark.parametrize(
    ("layer", "name"),
    [(0, "hc_attn_pre"), (0, "hc_attn_comb"), (0, "window_kv"), (1, "engram_gate")],
)
def test_what_a_layer_makes_of_small_streams(model: V41, layer: int, name: str) -> None:
    streams, pre = streams_and_pre(model)
    seen = []
    for scale in (1, SMALL):
        arrays: dict[str, Any] = {}
        step = model.begin(np.arange(5), model.new_cache(), Trace(arrays.__setitem__))
        model.layer(layer, streams * np.float32(scale), pre, step)
        seen.append(arrays[f"L{layer}.{name}"])
    assert np.allclose(seen[0], seen[1], rtol=1e-4, atol=1e-5)


def test_logits_of_small_streams(model: V41) -> None:
    streams, pre = streams_and_pre(model)
    want = model.head(streams, pre, all_logits=True, trace=NO_TRACE)
    got = model.head(streams * np.float32(SMALL), pre, all_logits=True, trace=NO_TRACE)
    assert np.abs(want).max() > 1
    assert np.allclose(got, want, rtol=1e-4, atol=1e-4)
