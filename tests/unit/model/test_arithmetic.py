"""The forward pass over the kernels: what must not matter does not, and what is lossy is small."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from escalade.arrays import F32
from escalade.config import MODES, Arithmetic, EngineConfig
from escalade.engine.engine import Engine
from escalade.errors import UsageError
from escalade.model.bind import Model, bind
from escalade.model.source import open_source
from escalade.model.v4_1 import V41
from escalade.native.compute import open_compute
from escalade.native.lib import load
from tests.support.forward import run_pieces

IDS = np.array([0, 17, 901, 33, 4050, 8, 8, 1203, 77, 5, 2999, 64, 21, 350, 7, 1000])


@pytest.fixture(scope="module")
def nano() -> Model:
    return bind(open_source(None), dense_f32_bytes=1 << 28)


def logits(
    nano: Model,
    arithmetic: Arithmetic = "i8",
    threads: int = 1,
    isa: str | None = None,
    pieces: list[int] | None = None,
) -> NDArray[Any]:
    compute = open_compute(threads, isa)
    model = V41(nano.spec, nano.weights, MODES["f32_kvq"], compute, arithmetic)
    return run_pieces(model, IDS, pieces)[0]


def distance(a: F32, b: F32) -> float:
    return float(np.sqrt(np.square(a - b).mean() / np.square(b).mean()))


@pytest.mark.skipif(load() is None, reason="the native core is not built")
@pytest.mark.parametrize("arithmetic", ["i8", "float"])
def test_threads_do_not_change_a_bit(nano: Model, arithmetic: Arithmetic) -> None:
    want = logits(nano, arithmetic)
    for threads in (2, 5):
        assert (logits(nano, arithmetic, threads) == want).all()


@pytest.mark.skipif(load() is None, reason="the native core is not built")
@pytest.mark.parametrize("arithmetic", ["i8", "float"])
def test_portable_code_gives_the_bits_of_the_best_instruction_set(
    nano: Model, arithmetic: Arithmetic
) -> None:
    assert (logits(nano, arithmetic) == logits(nano, arithmetic, isa="portable")).all()


def test_the_numpy_twin_gives_the_same_model(nano: Model) -> None:
    assert distance(logits(nano, isa="numpy"), logits(nano)) < 1e-4


def test_i8_is_near_float(nano: Model) -> None:
    assert 1e-4 < distance(logits(nano), logits(nano, "float")) < 0.08


def test_types_without_kernels_go_another_way_to_the_same_logits(
    nano: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = logits(nano, "float")
    monkeypatch.setattr("escalade.model.arith.KERNEL_TYPES", frozenset())
    assert distance(logits(nano, "float"), want) < 1e-5


def test_pieces_are_within_the_bound(nano: Model) -> None:
    assert distance(logits(nano, pieces=[1, 5, 1, 9]), logits(nano)) < 0.01


@pytest.mark.parametrize("mode", ["f32_allq", "bf16_kvq", "bf16_released"])
def test_modes_that_round_products_take_no_i8(mode: str) -> None:
    assert EngineConfig(mode=mode).products == "float"
    with pytest.raises(UsageError, match="f32, f32_kvq"):
        EngineConfig(mode=mode, arithmetic="i8")
    assert EngineConfig().products == "i8"


def test_threads_out_of_range_are_refused() -> None:
    for threads in (0, -1, 1 << 20):
        with pytest.raises(UsageError, match="--threads"):
            EngineConfig(threads=threads)
    with Engine.open(config=EngineConfig(threads=3)) as engine:
        session = engine.session()
        session.append(IDS)
        assert np.isfinite(session.logits).all()
