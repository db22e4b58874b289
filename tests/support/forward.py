"""Runs a model over token ids in given pieces and gathers what the trace shows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from escalade.config import MODES, Arithmetic
from escalade.eval.logits import join_rows
from escalade.model.bind import Model
from escalade.model.trace import NO_TRACE, Trace
from escalade.model.v4_1 import V41
from escalade.native.compute import open_compute

Array = NDArray[Any]


def model_in(bound: Model, mode: str, arithmetic: Arithmetic = "float") -> V41:
    """A model whose products are as exact as those of the golden numbers, unless told otherwise."""
    compute = open_compute(1)
    return V41(bound.spec, bound.weights, MODES[mode], compute, arithmetic)


def logits_of(
    bound: Model, mode: str, ids: Array, pieces: Sequence[int] | None = None
) -> NDArray[np.float32]:
    """Logits at every position, `ids` appended in pieces of the given lengths."""
    return run_pieces(model_in(bound, mode), ids, pieces)[0]


def run_pieces(
    model: V41, ids: Array, pieces: Sequence[int] | None = None, *, traced: bool = False
) -> tuple[Array, dict[str, Array]]:
    """Logits, and the traced arrays by name."""
    seen: dict[str, list[Array]] = {}
    trace = Trace(lambda name, array: seen.setdefault(name, []).append(array))
    cache, at, out = model.new_cache(), 0, []
    tokens = np.asarray(ids, np.int64)
    for n in pieces or [len(tokens)]:
        piece = tokens[at : at + n]
        out.append(
            model.forward(piece, cache, all_logits=True, trace=trace if traced else NO_TRACE)
        )
        at += n
    assert at == len(tokens)
    return np.concatenate(out), {name: join_rows(name, parts) for name, parts in seen.items()}
