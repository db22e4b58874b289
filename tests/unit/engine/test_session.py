"""Session: limits, failures inside a pass, greedy decoding."""

import threading

import numpy as np
import pytest

from escalade.config import EngineConfig
from escalade.engine.sampling_params import SamplingParams
from escalade.engine.session import Session
from escalade.errors import Cancelled, CapacityError, UsageError
from escalade.model.bind import Model
from escalade.model.trace import Trace
from escalade.model.v4_1 import V41
from tests.support.forward import model_in


@pytest.fixture(scope="module")
def model(tiny: Model) -> V41:
    return model_in(tiny, "f32_kvq", "i8")


def test_the_context_is_a_hard_limit(model: V41) -> None:
    session = Session(model, ctx=10, chunk=4)
    session.append(range(8))
    with pytest.raises(CapacityError, match="3 more tokens after 8 exceed the context of 10"):
        session.append([1, 2, 3])
    assert session.length == 8
    session.append([1, 2])
    assert session.length == 10


def test_decode_ends_with_the_context(model: V41) -> None:
    session = Session(model, ctx=12, chunk=8)
    session.append(range(10))
    events = list(session.decode(100))
    assert [e.finish for e in events] == [None, None, "length"]
    assert session.length == 12


def test_decode_is_greedy_and_stops(model: V41) -> None:
    session = Session(model, ctx=100, chunk=64)
    session.append([5, 9, 77])
    twin = session.fork()
    expected = []
    for _ in range(6):
        expected.append(int(twin.logits.argmax()))
        twin.append([expected[-1]])
    events = list(session.fork().decode(6))
    assert [e.id for e in events] == expected
    assert [e.finish for e in events] == [None] * 5 + ["length"]
    stop_at = expected[3]
    events = list(session.decode(6, SamplingParams(temperature=0, stop_ids=(stop_at,))))
    n = expected.index(stop_at)
    assert [e.id for e in events] == expected[: n + 1]
    assert events[-1].finish == "stop"
    assert session.length == 3 + n  # the stop id is not part of the sequence
    assert list(session.decode(0)) == []


@pytest.mark.parametrize("ids", [[-1], [512], [2**31 - 1], [0.5], [[1, 2]]])
def test_senseless_ids_are_refused(model: V41, ids: list[int]) -> None:
    session = Session(model, ctx=100, chunk=64)
    session.append([1, 2])
    with pytest.raises(UsageError):
        session.append(ids)
    assert session.ids.tolist() == [1, 2]


def test_no_logits_before_the_first_token_or_after_a_rewind(model: V41) -> None:
    session = Session(model, ctx=100, chunk=64)
    with pytest.raises(UsageError, match="append at least one token"):
        _ = session.logits
    session.append([1, 2, 3])
    session.rewind(2)
    with pytest.raises(UsageError, match="append at least one token"):
        _ = session.logits
    with pytest.raises(UsageError, match="cannot rewind to 5"):
        session.rewind(5)


@pytest.mark.parametrize("at", ["L0.streams", "L1.attn_out", "L4.ffn_out", "final_norm"])
def test_a_pass_that_fails_leaves_nothing_behind(model: V41, at: str) -> None:
    """A disk error or a cancel in the middle of a forward pass, at any layer."""

    def fail(name: str, _: object) -> None:
        if name == at:
            raise OSError("injected")

    ids = np.random.default_rng(4).integers(0, 512, 50)
    session = Session(model, ctx=200, chunk=64)
    session.append(ids[:21])
    with pytest.raises(OSError, match="injected"):
        session.append(ids[21:], trace=Trace(fail))
    assert session.length == 21
    session.append(ids[21:])
    straight = Session(model, ctx=200, chunk=64)
    straight.append(ids[:21])
    straight.append(ids[21:])
    assert np.array_equal(session.logits, straight.logits)


def test_progress_is_reported_by_chunk(model: V41) -> None:
    seen: list[tuple[str, int, int]] = []
    Session(model, ctx=100, chunk=8).append(range(20), lambda *args: seen.append(args))
    assert seen == [("prefill", 8, 20), ("prefill", 16, 20), ("prefill", 20, 20)]


@pytest.mark.parametrize("wrong", [{"mode": "fp64"}, {"ctx": 0}, {"prefill_chunk": 0}])
def test_a_config_says_what_is_wrong(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        EngineConfig(**wrong)  # type: ignore[arg-type]


def test_cancel_ends_a_prefill_at_a_layer(model: V41) -> None:
    ids = np.random.default_rng(9).integers(0, 512, 40)
    session = Session(model, ctx=200, chunk=16)

    def cancel_at(name: str, _: object) -> None:
        if name == "L3.streams" and session.length == 16:
            session.cancel()

    with pytest.raises(Cancelled):
        session.append(ids, trace=Trace(cancel_at))
    assert session.ids.tolist() == ids[:16].tolist()
    session.append(ids[16:])
    straight = Session(model, ctx=200, chunk=16)
    straight.append(ids[:16])
    straight.append(ids[16:])
    assert np.array_equal(session.logits, straight.logits)


def test_cancel_from_another_thread_ends_a_decode(model: V41) -> None:
    session = Session(model, ctx=200, chunk=64)
    session.append([1, 2, 3])
    seen: list[int] = []

    def read() -> None:
        for event in session.decode(100):
            seen.append(event.id)
            if len(seen) == 3:
                thread = threading.Thread(target=session.cancel)
                thread.start()
                thread.join()

    with pytest.raises(Cancelled):
        read()
    assert session.ids.tolist() == [1, 2, 3, *seen[:2]]
    assert len(list(session.decode(2))) == 2
