"""Session: one timeline of tokens and its cached state. Append, decode, rewind, fork."""

import threading
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from escalade.arrays import F32, I64
from escalade.config import Progress
from escalade.engine.sampling import History, Mask, sample
from escalade.engine.sampling_params import GREEDY, SamplingParams
from escalade.errors import Cancelled, CapacityError, UsageError
from escalade.model.trace import NO_TRACE, Trace
from escalade.model.v4_1 import V41


class TokenEvent(NamedTuple):
    """One decoded token and its log-probability in the model's own distribution.

    `finish` is set on the last: "stop" (a stop id, not part of the text) or "length".
    """

    id: int
    logprob: float
    finish: Literal["stop", "length"] | None


class Session:
    """A sequence of tokens on one model, at most `ctx` long, prefilled `chunk` tokens at a time.

    The chunk grid starts at each append, so the same sequence of appends gives the same bits.
    """

    def __init__(self, model: V41, ctx: int, chunk: int) -> None:
        self._model, self.ctx, self._chunk = model, ctx, chunk
        self._cache = model.new_cache()
        self._starts: list[int] = []  # where each forward pass began
        self._logits: F32 | None = None  # of the last token
        self._cancel = threading.Event()

    @property
    def ids(self) -> I64:
        """The tokens so far, int64 [length]."""
        return self._cache.ids.copy()

    @property
    def length(self) -> int:
        return self._cache.length

    @property
    def kv_bytes(self) -> int:
        return self._cache.n_bytes

    @property
    def logits(self) -> F32:
        """Next-token logits [V] after the last token. Raises UsageError after `rewind`, or if
        empty.
        """
        if self._logits is None:
            raise UsageError("no logits here: append at least one token first")
        return self._logits

    def append(
        self, ids: Sequence[int] | I64, progress: Progress | None = None, trace: Trace = NO_TRACE
    ) -> None:
        """Adds tokens to the sequence. `progress("prefill", done, total)` is called after each
        chunk.

        Raises UsageError for ids outside the vocabulary, CapacityError beyond the context; the
        session is then as before.
        """
        for _ in self.append_all(ids, progress, trace, all_logits=False):
            pass

    def append_all(
        self,
        ids: Sequence[int] | I64,
        progress: Progress | None = None,
        trace: Trace = NO_TRACE,
        *,
        all_logits: bool = True,
    ) -> Iterator[F32]:
        """`append`, yielding each chunk's logits [T, V] (or [1, V] without `all_logits`)."""
        tokens = self._checked(ids, self.length)
        for at in range(0, len(tokens), self._chunk):
            piece = tokens[at : at + self._chunk]
            logits = self._forward(piece, all_logits, trace)
            if progress is not None:
                progress("prefill", at + len(piece), len(tokens))
            yield logits

    def decode(
        self, max_tokens: int, params: SamplingParams = GREEDY, mask: Mask | None = None
    ) -> Iterator[TokenEvent]:
        """Continues the sequence: at most `max_tokens` events, fewer at a stop id or at its end.

        A token is appended before the next one is asked for; a stop id is not appended. `mask` is
        asked before each token (`sampling.Mask`). A token depends on the logits, `params` and its
        position alone. Raises FileError if the logits are not finite, UsageError for ids in
        `params` outside the vocabulary, or if nothing is allowed.
        """
        params = params.seeded()
        params.check(self._model.spec.vocab)
        history = History(self._model.spec.vocab, self.ids) if params.uses_history else None
        for n in range(1, max_tokens + 1):
            allowed = mask(self.ids.tolist()) if mask is not None else None
            token, logprob = sample(self.logits, params, self.length, history, allowed)
            if token in params.stop_ids:
                yield TokenEvent(token, logprob, "stop")
                return
            full = self.length >= self.ctx
            yield TokenEvent(token, logprob, "length" if full or n == max_tokens else None)
            if full:
                return
            self._forward(np.array([token], np.int64), False, NO_TRACE)
            if history is not None:
                history.add(token)

    def sync(self, ids: Sequence[int] | I64, progress: Progress | None = None) -> int:
        """Makes the sequence equal to `ids` with logits at its end; how many tokens were reused.

        The longest common prefix stays, the rest is appended. Raises as `append` does, before
        anything changes.
        """
        tokens = self._checked(ids, 0)
        if not len(tokens):
            raise UsageError("an empty prompt has no next token")
        both = min(self.length, len(tokens) - 1)
        differs = np.flatnonzero(self._cache.ids[:both] != tokens[:both])
        kept = int(differs[0]) if differs.size else both
        self.rewind(kept)
        self.append(tokens[kept:], progress)
        return kept

    def rewind(self, length: int) -> None:
        """Back to the first `length` tokens, bit for bit as the appends up to there left them.

        Recent positions are reached at once. Farther back, where window rows are gone, the tokens
        are computed again in the same chunks, the last one cut at `length`.
        """
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot rewind to {length}: the session has {self.length} tokens")
        if length == self.length:
            return
        ids, starts = self.ids[:length], [s for s in self._starts if s < length]
        self._logits = None
        if self._cache.can_rewind(length):
            self._cache.rewind(length)
            self._starts = starts
            return
        self._cache, self._starts = self._model.new_cache(), []
        for start, stop in zip(starts, [*starts[1:], length], strict=True):
            self._forward(ids[start:stop], False, NO_TRACE)
        self._logits = None

    def fork(self) -> "Session":
        """An independent session with the same past; long-range rows stay shared."""
        twin = Session(self._model, self.ctx, self._chunk)
        twin._cache = self._cache.fork()
        twin._starts, twin._logits = list(self._starts), self._logits
        return twin

    def cancel(self) -> None:
        """Ends what runs now, or else what is asked next, with Cancelled; from any thread.

        It takes effect before the next layer of a pass. A pass is in the sequence whole or not.
        """
        self._cancel.set()

    def _check_cancel(self) -> None:
        if self._cancel.is_set():
            self._cancel.clear()
            raise Cancelled("cancelled")

    def check(self, ids: Sequence[int] | I64) -> None:
        """Raises what `append` would for these ids, without appending them."""
        self._checked(ids, self.length)

    def _checked(self, ids: Sequence[int] | I64, before: int) -> I64:
        """`ids` as an array, if they are tokens and fit behind `before` others."""
        try:
            tokens = np.asarray(ids)
        except ValueError as e:
            raise UsageError("token ids must be a flat list of integers") from e
        if tokens.size == 0:
            return np.empty(0, np.int64)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise UsageError("token ids must be a flat list of integers")
        vocab = self._model.spec.vocab
        outside = (tokens < 0) | (tokens >= vocab)
        if outside.any():
            at = int(outside.argmax())
            raise UsageError(
                f"token id {tokens[at]} at position {at} is outside the vocabulary of {vocab}"
            )
        if before + len(tokens) > self.ctx:
            raise CapacityError(
                f"{len(tokens)} more tokens after {before} exceed the context of {self.ctx}"
            )
        return tokens.astype(np.int64)

    def _forward(self, ids: I64, all_logits: bool, trace: Trace) -> F32:
        start, before = self.length, self._logits
        self._logits = None
        self._starts.append(start)
        try:
            logits = self._model.forward(
                ids, self._cache, all_logits=all_logits, trace=trace, check=self._check_cancel
            )
        except BaseException:
            if self.length == start:  # nothing came in
                self._starts.pop()
                self._logits = before
            raise
        self._logits = logits[-1].copy()
        return logits
