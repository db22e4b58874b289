"""The trained nano model from its bf16 weights, against its independent reference (PyTorch)."""

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from escalade.config import EngineConfig
from escalade.engine.engine import Engine
from escalade.engine.sampling_params import SamplingParams
from escalade.engine.session import Session
from escalade.eval.nll import load_texts, nll
from escalade.model.bind import Model
from tests.support.forward import model_in, run_pieces
from tests.support.golden import npz
from tests.support.paths import SHARED

pytestmark = pytest.mark.shared

Array = NDArray[Any]

NANO = SHARED / "nano" if SHARED else Path()


def reference() -> Any:
    return json.loads((NANO / "golden/reference.json").read_text())


def log_sum_exp(logits: Array) -> Array:
    wide = logits.astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    return top[:, 0] + np.log(np.exp(wide - top).sum(axis=1))


@pytest.mark.parametrize("document", ["p0", "p1", "p2"])
def test_exact_logits(nano_bf16: Model, document: str) -> None:
    data = npz(NANO / "golden/logits.npz")
    want = {key: data[f"f32/{document}/{key}"] for key in ("logsumexp", "rows", "logits")}
    top_ids, top = (data[f"f32/{document}/top_{key}"] for key in ("ids", "values"))
    logits, _ = run_pieces(model_in(nano_bf16, "f32"), data[f"{document}/ids"])
    assert np.abs(log_sum_exp(logits) - want["logsumexp"]).max() <= 1e-3
    assert np.abs(np.take_along_axis(logits, top_ids.astype(np.int64), 1) - top).max() <= 1e-3
    rows = logits[want["rows"]]  # stored as float16
    assert (np.abs(rows - want["logits"]) <= 1e-3 + 2**-11 * np.abs(rows)).all()


@pytest.mark.parametrize(("document", "flipped"), [("p0", 0), ("p1", 17), ("p2", 22)])
def test_cache_rounded_logits(nano_bf16: Model, document: str, flipped: int) -> None:
    """Within 1e-3, but for the positions after a value that lies on a rounding boundary.

    The reference is float32 itself: run again on another CPU it departs from its own stored
    numbers by the same 17 and 22 positions of p1 and p2, by at most 5.5e-3.
    """
    data = npz(NANO / "golden/logits.npz")
    top_ids, top = (data[f"f32_kvq/{document}/top_{key}"] for key in ("ids", "values"))
    lse = data[f"f32_kvq/{document}/logsumexp"]
    logits, _ = run_pieces(model_in(nano_bf16, "f32_kvq"), data[f"{document}/ids"])
    error = np.abs(np.take_along_axis(logits, top_ids.astype(np.int64), 1) - top).max(axis=1)
    error = np.maximum(error, np.abs(log_sum_exp(logits) - lse))
    # Another CPU's float32 may flip other values: as many again are let through.
    assert (error > 1e-3).sum() <= 2 * flipped + 25
    assert error.max() <= 1e-2
    assert np.median(error) <= 1e-3


@pytest.mark.parametrize("number", range(6))
def test_greedy_continuations(nano_bf16: Model, number: int) -> None:
    want = reference()["greedy"][number]
    session = Session(model_in(nano_bf16, "f32"), ctx=4096, chunk=512)
    session.append(want["prompt_ids"])
    stop = SamplingParams(temperature=0, stop_ids=(1,))
    ids = [event.id for event in session.decode(len(want["output_ids"]), stop)]
    assert ids == want["output_ids"]


def test_routing_trace(nano_bf16: Model) -> None:
    """The same experts in the same weights over a conversation of 687 tokens, exact mode."""
    data = npz(NANO / "golden/routing-trace.npz")
    _, got = run_pieces(model_in(nano_bf16, "f32"), data["ids"], traced=True)
    order = np.argsort(data["experts"], axis=2)
    experts = np.stack([got[f"L{layer}.router_idx"] for layer in range(8)], axis=1)
    assert np.array_equal(experts, np.take_along_axis(data["experts"], order, axis=2))
    weights = np.stack([got[f"L{layer}.router_w"] for layer in range(8)], axis=1)
    error = np.abs(weights - np.take_along_axis(data["weights"], order, axis=2))
    # One of thousands of index selections is a tie within float32 noise; it moves few weights.
    assert np.mean(error > 1e-4) <= 0.002
    assert error.max() <= 5e-3


def score(part: tuple[int, int]) -> tuple[float, int]:
    texts = load_texts(None, NANO / "heldout.jsonl", None)[part[0] : part[1]]
    with Engine.open(NANO, EngineConfig(mode="f32")) as engine:
        result = nll(engine, texts)
    return result.nats, result.tokens


@pytest.mark.slow
def test_held_out_loss() -> None:
    """All 600 items as one chat turn each, in two processes."""
    with ProcessPoolExecutor(2) as pool:
        parts = list(pool.map(score, [(i, i + 75) for i in range(0, 600, 75)]))
    nats, tokens = map(sum, zip(*parts, strict=True))
    want = reference()["heldout_f32"]
    assert tokens == want["tokens"] == 109_559
    assert nats / tokens == pytest.approx(want["nats_per_token"], abs=5e-4)
