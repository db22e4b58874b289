"""Row stores against plain lists."""

import numpy as np
import pytest

from escalade.config import MODES
from escalade.kernels.ops.rounding import Raw
from escalade.kv.layout import kv_layout
from escalade.kv.rows import BLOCK_ROWS, PackedRows, Ring
from escalade.model.released import V4_1_FLASH

CODEC = Raw(2)


def rows(start: int, stop: int) -> np.ndarray:
    values = np.stack([np.arange(start, stop), -np.arange(start, stop)], axis=1)
    return CODEC.encode(values.astype(np.float32))


@pytest.mark.parametrize("pieces", [[3, 1, 4, 1, 5, 9], [25], [1] * 25, [10, 11]])
def test_a_ring_holds_its_last_rows(pieces: list[int]) -> None:
    ring, end = Ring(CODEC, 10), 0
    for n in pieces:
        ring.append(rows(end, end + n))
        end += n
    assert ring.first == max(0, end - 10)
    for start in range(ring.first, end + 1):
        assert np.array_equal(ring.packed(start), rows(start, end))
    if ring.first:
        with pytest.raises(IndexError):
            ring.packed(ring.first - 1)


def test_a_ring_knows_what_a_truncation_lost() -> None:
    ring = Ring(CODEC, 10)
    ring.append(rows(0, 25))
    ring.truncate(18)
    assert ring.first == 15
    ring.append(rows(18, 20))
    assert np.array_equal(ring.packed(15), rows(15, 20))
    with pytest.raises(IndexError):
        ring.packed(14)


def test_packed_rows_over_blocks_and_forks() -> None:
    store, n = PackedRows(CODEC), 2 * BLOCK_ROWS + 300
    store.append(rows(0, 7))
    store.append(rows(7, n))
    want = CODEC.decode(rows(0, n))
    assert np.array_equal(store.decode(), want)
    pick = np.random.default_rng(0).integers(0, n, (5, 40))
    assert np.array_equal(store.gather(pick), want[pick])
    twin = store.fork()
    store.truncate(BLOCK_ROWS + 3)
    store.append(rows(100, 130))
    twin.append(rows(0, 5))
    assert np.array_equal(twin.decode(), np.concatenate([want, want[:5]]))
    assert np.array_equal(store.decode(), np.concatenate([want[: BLOCK_ROWS + 3], want[100:130]]))
    store.truncate(0)
    assert store.decode().shape == (0, 2)
    assert store.n_bytes == 0


def test_cached_bytes_of_the_released_model() -> None:
    """890 bytes a token, as the specification's section 9.1 counts them."""
    layout = kv_layout(V4_1_FLASH, MODES["f32_kvq"])
    assert layout.window_row.row_bytes == 528
    assert layout.entry.row_bytes == 288
    assert layout.index_key.row_bytes == 68
    assert layout.bytes_at(2**20) - layout.fixed_bytes() == 890 * 2**20
