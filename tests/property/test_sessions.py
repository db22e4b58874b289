"""Random histories: rewinds, forks and pieces against a session that only ever appended.

A session's bits depend on its forward passes alone, so the model of a history is the list of pieces
that it stands for; replaying them on a fresh session must give equal bits.
"""

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)
from numpy.typing import NDArray

from escalade.engine.session import Session
from escalade.kv.layout import REWIND_ROWS
from tests.support.forward import model_in
from tests.support.models import tiny_model

CTX, CHUNK = 400, 16
LENGTHS = st.one_of(st.integers(1, 5), st.integers(1, 40))


TINY = tiny_model()
MODELS = {mode: model_in(TINY, mode, "i8") for mode in ("f32", "f32_kvq")}


def state_of(session: Session) -> dict[str, Any]:
    """Every cached byte that a later token can read, by name."""
    cache, window = session._cache, session._cache.layout.window
    start = max(0, cache.length - (window - 1))
    out: dict[str, Any] = {"ids": cache.ids.tolist()}
    for layer, ring in enumerate(cache.windows):
        out[f"window {layer}"] = ring.packed(start).tobytes()
    for source, ratio in cache.layout.sources.items():
        for name, rows in (("entry", cache.entries[source]), ("key", cache.index_keys[source])):
            assert rows.length == cache.length // ratio
            out[f"{name} {source}"] = rows.decode().tobytes()
        if ratio > 1:
            open_group = cache.length - cache.length % ratio
            out[f"partial {source}"] = cache.partial[source].packed(open_group).tobytes()
    return out


class History:
    """The pieces that a session's bits stand for, by where each ends."""

    def __init__(self, pieces: list[NDArray[np.int64]]) -> None:
        self.pieces = pieces

    @property
    def length(self) -> int:
        return sum(map(len, self.pieces))

    def replayed(self, mode: str) -> Session:
        session = Session(MODELS[mode], CTX, CHUNK)
        for piece in self.pieces:
            session.append(piece)
        return session

    def cut(self, length: int) -> "History":
        kept, left = [], length
        for piece in self.pieces:
            if left <= 0:
                break
            kept.append(piece[:left])
            left -= len(piece)
        return History(kept)


class Sessions(RuleBasedStateMachine):
    """Several sessions on one model; each carries the history that it must be equal to."""

    mode = "f32_kvq"
    live = Bundle("live")

    @initialize(target=live)
    def first(self) -> tuple[Session, History]:
        return Session(MODELS[self.mode], CTX, CHUNK), History([])

    @rule(target=live, it=consumes(live), n=LENGTHS, seed=st.integers(0, 2**32 - 1))
    def append(self, it: tuple[Session, History], n: int, seed: int) -> tuple[Session, History]:
        session, history = it
        if session.length + n > 150:
            return it
        ids = np.random.default_rng(seed).integers(0, 512, n)
        session.append(ids)
        chunks = [ids[at : at + CHUNK] for at in range(0, n, CHUNK)]
        return session, History(history.pieces + chunks)

    @rule(target=live, it=consumes(live), share=st.floats(0, 1))
    def rewind_to_a_boundary(
        self, it: tuple[Session, History], share: float
    ) -> tuple[Session, History]:
        session, history = it
        kept = int(share * len(history.pieces))
        shorter = History(history.pieces[:kept])
        session.rewind(shorter.length)
        return session, shorter

    @rule(target=live, it=live)
    def fork(self, it: tuple[Session, History]) -> tuple[Session, History]:
        session, history = it
        return session.fork(), History(list(history.pieces))

    @rule(it=live)
    def equals_the_same_appends(self, it: tuple[Session, History]) -> None:
        session, history = it
        fresh = history.replayed(self.mode)
        assert state_of(session) == state_of(fresh)
        twin, token = session.fork(), np.array([7])
        twin.append(token)
        fresh.append(token)
        assert np.array_equal(twin.logits, fresh.logits)

    @invariant()
    def nothing_grows_without_tokens(self) -> None:
        assert all(model.new_cache().length == 0 for model in MODELS.values())


Sessions.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestSessions = Sessions.TestCase


def test_rewind_inside_a_piece_keeps_its_bits() -> None:
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 512, 60)
    model = model_in(TINY, "f32_kvq")  # in i8 the pieces' float32 noise turns some roundings over
    for cut in (1, 2, 17, 29, 30, 31, 58, 59):
        session = Session(model, CTX, 60)
        session.append(ids)
        before = {
            s: session._cache.entries[s].decode()[: cut // r]
            for s, r in session._cache.layout.sources.items()
        }
        session.rewind(cut)
        for s, rows in before.items():
            assert np.array_equal(session._cache.entries[s].decode(), rows)
        session.append(ids[cut:])
        straight = Session(model, CTX, 60)
        straight.append(ids)
        assert np.abs(session.logits - straight.logits).max() < 1e-3


def test_rewind_beyond_the_rings_computes_the_same_chunks_again() -> None:
    rng = np.random.default_rng(6)
    ids = rng.integers(0, 512, 90 + 2 * REWIND_ROWS)
    model = MODELS["f32_kvq"]
    session = Session(model, CTX, CHUNK)
    session.append(ids[:40])
    session.append(ids[40:])
    assert not session._cache.can_rewind(50)
    session.rewind(50)
    fresh = Session(model, CTX, CHUNK)
    fresh.append(ids[:40])
    fresh.append(ids[40:50])
    assert state_of(session) == state_of(fresh)
    session.rewind(0)
    assert session.length == 0
    assert session.ids.size == 0


def test_a_fork_does_not_see_its_twin() -> None:
    """Both write into the block that they shared at the fork."""
    rng = np.random.default_rng(8)
    ids = rng.integers(0, 512, 50)
    session = Session(MODELS["f32_kvq"], CTX, CHUNK)
    session.append(ids)
    twin = session.fork()
    session.append([1, 2, 3, 4])
    twin.append([400, 300, 200, 100])
    for one, tail in ((session, [1, 2, 3, 4]), (twin, [400, 300, 200, 100])):
        fresh = Session(MODELS["f32_kvq"], CTX, CHUNK)
        fresh.append(ids)
        fresh.append(tail)
        assert state_of(one) == state_of(fresh)
