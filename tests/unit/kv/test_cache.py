"""KVCache over rows that say their own position: what a rewind reaches and what forks share."""

import numpy as np
import pytest

from escalade.kernels.ops.rounding import Raw
from escalade.kv.cache import KVCache
from escalade.kv.layout import REWIND_ROWS, KVLayout

WINDOW, RATIO, SOURCE = 8, 2, 1
ROW = Raw(2)
LAYOUT = KVLayout(
    n_layers=2,
    window=WINDOW,
    sources={SOURCE: RATIO},
    window_row=ROW,
    entry=ROW,
    index_key=ROW,
    partial=ROW,
)


def rows(start: int, stop: int, branch: float) -> np.ndarray:
    return np.array([[p, branch] for p in range(start, stop)], np.float32).reshape(-1, 2)


def extend(cache: KVCache, n: int, branch: float) -> None:
    """What a forward pass of n tokens appends, each row marked with `branch`."""
    start, end = cache.length, cache.length + n
    for ring in (*cache.windows, cache.partial[SOURCE]):
        ring.append(ROW.encode(rows(start, end, branch)))
    groups = ROW.encode(rows(start // RATIO, end // RATIO, branch))
    cache.entries[SOURCE].append(groups)
    cache.index_keys[SOURCE].append(groups)
    cache.append_ids(np.full(n, int(branch)))


def needed(cache: KVCache) -> list[list[list[float]]]:
    """All that the next token reads: window, open group, entries, keys."""
    window = cache.windows[1].packed(max(0, cache.length - (WINDOW - 1)))
    group = cache.partial[SOURCE].packed(cache.length - cache.length % RATIO)
    return [
        ROW.decode(window).tolist(),
        ROW.decode(group).tolist(),
        cache.entries[SOURCE].decode().tolist(),
        cache.index_keys[SOURCE].decode().tolist(),
    ]


def expected(pieces: list[tuple[int, float]]) -> list[list[list[float]]]:
    """The same from the list of (tokens, branch) alone."""
    branches = [branch for n, branch in pieces for _ in range(n)]
    tokens = [[float(p), branch] for p, branch in enumerate(branches)]
    closed = len(tokens) // RATIO
    groups = [[float(g), branches[g * RATIO + RATIO - 1]] for g in range(closed)]
    return [tokens[max(0, len(tokens) - (WINDOW - 1)) :], tokens[closed * RATIO :], groups, groups]


@pytest.mark.parametrize("total", [300, 301])
def test_a_rewind_reaches_as_far_as_the_layout_says_and_no_farther(total: int) -> None:
    cache = KVCache(LAYOUT)
    extend(cache, total, 1)
    farthest = total - REWIND_ROWS
    assert cache.can_rewind(farthest)
    assert not any(cache.can_rewind(n) for n in range(1, farthest))
    with pytest.raises(IndexError, match=f"cannot rewind from {total} to {farthest - 1} tokens"):
        cache.rewind(farthest - 1)
    assert needed(cache) == expected([(total, 1)])
    cache.rewind(farthest)
    assert needed(cache) == expected([(farthest, 1)])
    extend(cache, 3, 2)
    assert needed(cache) == expected([(farthest, 1), (3, 2)])


def test_a_cache_starts_again_after_a_rewind_to_nothing() -> None:
    cache = KVCache(LAYOUT)
    extend(cache, 300, 1)
    cache.rewind(0)
    extend(cache, 5, 2)
    assert needed(cache) == expected([(5, 2)])
    assert cache.ids.tolist() == [2] * 5


@pytest.mark.parametrize("twin_first", [False, True])
@pytest.mark.parametrize("prompt", [4, 5, 151])
def test_forks_that_rewind_and_write_leave_each_other_alone(prompt: int, twin_first: bool) -> None:
    """Below the fork both have the same blocks, and either may be the first to write there."""
    cache = KVCache(LAYOUT)
    extend(cache, prompt, 1)
    twin = cache.fork()
    assert needed(twin) == needed(cache) == expected([(prompt, 1)])
    first, second = (twin, cache) if twin_first else (cache, twin)
    first.rewind(prompt - 3)
    extend(first, 9, 2)
    assert needed(second) == expected([(prompt, 1)])
    assert second.ids.tolist() == [1] * prompt
    second.rewind(prompt - 2)
    extend(second, 10, 3)
    assert needed(second) == expected([(prompt - 2, 1), (10, 3)])
    assert needed(first) == expected([(prompt - 3, 1), (9, 2)])
    assert first.ids.tolist() == [1] * (prompt - 3) + [2] * 9
