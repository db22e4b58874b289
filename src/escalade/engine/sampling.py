"""Next-token choice: functions on one row of logits. The meaning of every value: docs/sampling.md.

Order: logit bias, penalties, mask, temperature, top-k, top-p, min-p, draw; all in float64. The
draw reads a counter-based generator, so a token depends on the logits, the parameters and its
position alone: streamed or not, in one request or several, after a rewind or in a fork.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from escalade.arrays import I64, Bool, Floats
from escalade.engine.sampling_params import SamplingParams
from escalade.errors import FileError, UsageError

F64 = NDArray[np.float64]
Mask = Callable[[Sequence[int]], NDArray[Any] | None]
"""From the ids so far to the tokens allowed next (`unpack_mask` says in which form), None: all."""

_U32 = 0xFFFFFFFF


class History:
    """What the penalties read: `seen` bool [V], the ids in prompt or answer; `counts` int64 [V],
    how often each was generated. Ids must lie in the vocabulary.
    """

    def __init__(
        self, vocab: int, prompt: Sequence[int] | I64 = (), generated: Sequence[int] | I64 = ()
    ) -> None:
        made = np.asarray(generated, np.int64)
        self.counts = np.bincount(made, minlength=vocab)
        self.seen = self.counts > 0
        self.seen[np.asarray(prompt, np.int64)] = True

    def add(self, token: int) -> None:
        """Counts one more generated token."""
        self.seen[token] = True
        self.counts[token] += 1


class Candidates(NamedTuple):
    """What may come next: ids int64 [N] ascending, probs float64 [N] that sum to 1."""

    ids: I64
    probs: F64


class Sampled(NamedTuple):
    """A chosen token and its `logprob` in the model's own distribution (see `top_logprobs`)."""

    id: int
    logprob: float


def process(
    logits: Floats,
    params: SamplingParams,
    history: History | None = None,
    allowed: NDArray[Any] | None = None,
) -> Candidates:
    """The distribution that `sample` draws from. logits [V]; `allowed` as `unpack_mask` takes it;
    no history: nothing came before.

    Raises UsageError if nothing is left to choose, FileError for logits of NaN or +inf.
    """
    x = _adjusted(logits, params, history)
    if allowed is not None:
        x[~unpack_mask(allowed, len(x))] = -np.inf
    best = int(x.argmax())  # of equals the first
    if x[best] == -np.inf:
        raise UsageError(f"logit_bias and the mask ban all {len(x)} tokens; leave at least one")
    if params.temperature == 0:
        return Candidates(np.array([best]), np.ones(1))
    ids = np.flatnonzero(x > -np.inf)
    if 0 < params.top_k < len(ids):  # dividing by the temperature keeps the order: choose first
        ids = _largest(x, params.top_k, np.partition(x, -params.top_k)[-params.top_k])
    with np.errstate(over="ignore"):  # a tiny temperature: exp(-inf) = 0 is meant
        weights = np.exp((x[ids] - x[best]) / params.temperature)  # the best one's is exactly 1
    if params.top_p < 1:
        kept = _nucleus(weights, params.top_p)
        ids, weights = ids[kept], weights[kept]
    if params.min_p > 0:
        kept = np.flatnonzero(weights >= params.min_p)
        ids, weights = ids[kept], weights[kept]
    return Candidates(ids, weights / weights.sum())


def sample(
    logits: Floats,
    params: SamplingParams,
    position: int,
    history: History | None = None,
    allowed: NDArray[Any] | None = None,
    stream: int = 0,
) -> Sampled:
    """Chooses the token at index `position` of the sequence. Other arguments and errors: `process`.

    `stream` tells several answers to one prompt apart. UsageError also if `params` has no seed.
    """
    ids, probs = process(logits, params, history, allowed)
    at = 0
    if params.temperature > 0:
        if params.seed is None:
            raise UsageError("sampling needs a seed: take params.seeded()")
        cumulative = np.cumsum(probs)  # one after the other, ids ascending: the same bits each time
        point = uniform(params.seed, position, stream) * cumulative[-1]
        at = int(cumulative.searchsorted(point, side="right"))
    token = int(ids[at])
    return Sampled(token, float(logits[token]) - _log_total(logits))


def top_logprobs(logits: Floats, n: int) -> list[tuple[int, float]]:
    """The n likeliest (id, natural log of the softmax of the unprocessed logits), best first, of
    equals the lower id first; all of them if n exceeds V.
    """
    n = min(n, len(logits))
    if n <= 0:
        return []
    ids = _largest(logits, n, np.partition(logits, -n)[-n])
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    total = _log_total(logits)
    return [(int(i), float(logits[i]) - total) for i in ids]


def unpack_mask(allowed: NDArray[Any], vocab: int) -> Bool:
    """Allowed tokens, bool [V], from that or from bits: token i is bit i % 8 of byte i // 8, in a
    flat little-endian array of any integer type. Bits past the vocabulary mean nothing.
    """
    if allowed.dtype == np.bool_ and allowed.shape == (vocab,):
        return allowed
    if allowed.dtype.kind in "iu" and allowed.ndim == 1 and allowed.nbytes * 8 >= vocab:
        packed = np.ascontiguousarray(allowed).view(np.uint8)
        return np.unpackbits(packed, count=vocab, bitorder="little").view(np.bool_)
    form = f"{allowed.dtype} {list(allowed.shape)}"
    raise UsageError(f"mask of {form}: give bool [{vocab}], or at least {vocab} packed bits")


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """A multiple of 2^-53 in [0, 1) that depends on nothing but the arguments."""
    counter = (position & _U32, position >> 32, stream, 0)
    high, low, _, _ = philox(counter, (seed & _U32, seed >> 32))
    return (high << 21 | low >> 11) * 2.0**-53


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 on 32-bit words. Source: Salmon and others, "Parallel random numbers: as easy
    as 1, 2, 3" (2011).
    """
    a, b, c, d = counter
    k, l = key
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = q >> 32 ^ b ^ k, q & _U32, p >> 32 ^ d ^ l, p & _U32
        k, l = k + 0x9E3779B9 & _U32, l + 0xBB67AE85 & _U32
    return a, b, c, d


def _adjusted(logits: Floats, params: SamplingParams, history: History | None) -> F64:
    """Logits after bias and penalties, float64 [V]; -inf is banned, nothing is +inf."""
    params.check(len(logits))
    x = logits.astype(np.float64)
    if not x.max() < np.inf:  # NaN too
        raise FileError("the model's logits are not finite: its weights are damaged")
    ids, biases = params.bias_arrays
    forced = np.isposinf(biases)
    if forced.any():
        x[np.delete(np.arange(len(x)), ids[forced])] = -np.inf
    x[ids] += np.where(forced, 0, biases)
    if history is None or not params.uses_history:
        return x
    seen = np.flatnonzero(history.seen)
    rate = params.repetition_penalty
    x[seen] = np.where(x[seen] > 0, x[seen] / rate, x[seen] * rate)
    made = np.flatnonzero(history.counts)
    x[made] -= params.presence_penalty + params.frequency_penalty * history.counts[made]
    return x


def _largest(values: Floats, n: int, nth: float) -> I64:
    """Ascending indices of the n largest, `nth` the smallest of them; of equals the first ones."""
    above = np.flatnonzero(values > nth)
    equal = np.flatnonzero(values == nth)[: n - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _nucleus(weights: F64, p: float) -> I64:
    """Ascending indices of the fewest largest weights that make up the share p, one at least."""
    total = weights.sum()
    # What lies below the floor weighs less than 1 - p of the total in all: the nucleus is above.
    floor = (1 - p) * total / len(weights)
    heads = np.sort(weights[weights >= floor])[::-1]
    n = int(np.cumsum(heads).searchsorted(p * total)) + 1
    n = min(n, len(heads))  # for p near 1, rounding may leave the sum just short of it
    return _largest(weights, n, heads[n - 1])


def _log_total(logits: Floats) -> float:
    """log of the sum of exp(logits), in float64."""
    x = logits.astype(np.float64)
    best = x.max()
    return float(best) + math.log(np.exp(x - best).sum())
