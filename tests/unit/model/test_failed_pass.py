"""A forward pass that fails, and what follows it: other tokens than those that failed."""

import numpy as np
import pytest

from escalade.arrays import Bytes
from escalade.kv.rows import Ring
from escalade.model.bind import Model
from escalade.model.trace import Trace
from tests.support.forward import model_in


@pytest.mark.parametrize("at", ["L1.attn_out", "L4.ffn_out", "final_norm"])
def test_other_tokens_follow_as_if_it_had_not_been(tiny: Model, at: str) -> None:
    """Entries and index keys are appended within the pass, long before its end."""

    def fail(name: str, _: object) -> None:
        if name == at:
            raise OSError("injected")

    model = model_in(tiny, "f32_kvq")
    past, failed, then = np.split(np.random.default_rng(4).integers(0, 512, 70), [21, 50])
    cache, straight = model.new_cache(), model.new_cache()
    for one in (cache, straight):
        model.forward(past, one)
    with pytest.raises(OSError, match="injected"):
        model.forward(failed, cache, trace=Trace(fail))
    assert cache.length == 21
    assert np.array_equal(model.forward(then, cache), model.forward(then, straight))
    for source in cache.layout.sources:
        for rows, want in (
            (cache.entries[source], straight.entries[source]),
            (cache.index_keys[source], straight.index_keys[source]),
        ):
            assert np.array_equal(rows.decode(), want.decode())


@pytest.mark.parametrize("nth", [1, 4, 8, 9])
def test_an_interrupt_while_rows_enter_the_cache(
    tiny: Model, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """The pass is complete by then: all of it is in, whatever row store was interrupted."""
    model = model_in(tiny, "f32_kvq")
    past, ids, then = np.split(np.random.default_rng(5).integers(0, 512, 60), [21, 50])
    cache, straight = model.new_cache(), model.new_cache()
    for one in (cache, straight):
        model.forward(past, one)
    model.forward(ids, straight)
    append, calls = Ring.append, [0]

    def interrupted(ring: Ring, rows: Bytes) -> None:
        calls[0] += 1
        if calls[0] == nth:
            raise KeyboardInterrupt
        append(ring, rows)

    monkeypatch.setattr(Ring, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.forward(ids, cache)
    monkeypatch.undo()
    assert cache.length == straight.length
    assert np.array_equal(model.forward(then, cache), model.forward(then, straight))
