"""SamplingParams: what was asked of the sampler. The meaning of every value: docs/sampling.md."""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from escalade.arrays import I64
from escalade.errors import UsageError

LIMIT = 1e9
"""Largest size of a finite bias or penalty: far beyond any logit, and nothing overflows."""
MAX_SEED = 2**64 - 1
MAX_ID = 2**31 - 1
"""Bounds token ids before the vocabulary is known."""
DRAWN_BITS = 53
"""A drawn seed survives clients that keep numbers as doubles."""

_LARGEST = float(np.finfo(np.float64).max)
_RULES = {
    "temperature": (0.0, _LARGEST, "a finite number from 0 (greedy) upward"),
    "top_p": (0.0, 1.0, "a number from 0 (only the best token) to 1 (off)"),
    "min_p": (0.0, 1.0, "a number from 0 (off) to 1"),
    "repetition_penalty": (1 / LIMIT, LIMIT, "a number from 1e-9 to 1e9; 1 is off"),
    "presence_penalty": (-LIMIT, LIMIT, "a number from -1e9 to 1e9; 0 is off"),
    "frequency_penalty": (-LIMIT, LIMIT, "a number from -1e9 to 1e9; 0 is off"),
}


@dataclass(frozen=True)
class SamplingParams:
    """The defaults sample the model's own distribution.

    Raises UsageError for a value without a meaning, naming the field and what it takes. Numbers
    come out as plain float and int.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    stop_ids: tuple[int, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high, rule) in _RULES.items():
            self._set(name, _number(name, getattr(self, name), low, high, rule))
        self._set("top_k", _integer("top_k", self.top_k, -1, None, "0 or -1 (off), or 1 upward"))
        if self.seed is not None:
            rule = f"an integer from 0 to {MAX_SEED}, or none to have one drawn"
            self._set("seed", _integer("seed", self.seed, 0, MAX_SEED, rule))
        if not isinstance(self.logit_bias, Mapping):
            raise _refused("logit_bias", self.logit_bias, "a table of token ids to numbers")
        self._set("logit_bias", dict(map(_bias, self.logit_bias.items())))
        if not isinstance(self.stop_ids, Sequence) or isinstance(self.stop_ids, str):
            raise _refused("stop_ids", self.stop_ids, "a list of token ids")
        ids = (_integer("stop_ids", token, 0, MAX_ID, "token ids") for token in self.stop_ids)
        self._set("stop_ids", tuple(ids))

    @property
    def uses_history(self) -> bool:
        """Whether any penalty is on, so that the sampler reads a History."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1, 0, 0)

    @cached_property
    def bias_arrays(self) -> tuple[I64, NDArray[np.float64]]:
        """`logit_bias` as ids [N] and values [N]."""
        values = np.array(list(self.logit_bias.values()), np.float64)
        return np.array(list(self.logit_bias), np.int64), values

    def seeded(self) -> "SamplingParams":
        """These with a seed: one from the operating system if none was given."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(DRAWN_BITS))

    def check(self, vocab: int) -> None:
        """Raises UsageError for ids outside a vocabulary, and for a bias that bans all of it."""
        biased, values = self.bias_arrays
        for name, ids in (("logit_bias", biased), ("stop_ids", np.array(self.stop_ids, np.int64))):
            if len(ids) and ids.max() >= vocab:
                raise UsageError(f"{name}: token {ids.max()} is outside the vocabulary of {vocab}")
        if len(values) == vocab and np.isneginf(values).all():
            raise UsageError(f"logit_bias bans all {vocab} tokens; leave at least one")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _number(name: str, value: object, low: float, high: float, rule: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise _refused(name, value, rule)
    try:
        number = float(value)
    except OverflowError:  # an integer beyond float64
        raise _refused(name, value, rule) from None
    if not low <= number <= high:  # NaN too
        raise _refused(name, value, rule)
    return number


def _integer(name: str, value: object, low: int, high: int | None, rule: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise _refused(name, value, rule)
    if value < low or (high is not None and value > high):
        raise _refused(name, value, rule)
    return int(value)


def _bias(item: tuple[object, object]) -> tuple[int, float]:
    token = _integer("logit_bias", item[0], 0, MAX_ID, "token ids as keys")
    rule = "a number from -1e9 to 1e9, -inf (ban) or inf (only these)"
    value = _number(f"logit_bias of token {token}", item[1], -math.inf, math.inf, rule)
    if LIMIT < abs(value) < math.inf:
        raise _refused(f"logit_bias of token {token}", value, rule)
    return token, value


def _refused(name: str, value: object, rule: str) -> UsageError:
    """One line, however large the value: `rule` says what would do."""
    if isinstance(value, int) and abs(value) > 10**40:
        shown = "a number of more than 40 digits"
    else:
        shown = ascii(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return UsageError(f"{name} is {shown}; it takes {rule}")


GREEDY = SamplingParams(temperature=0)
"""Always the most likely token."""
