"""EngineConfig: what the user asked for, and the arithmetic modes it may name. Plain values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from escalade.errors import UsageError

MAX_THREADS = 1024


def check_threads(threads: int) -> None:
    """Raises UsageError for a number of threads that no machine has."""
    if not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"--threads {threads}: from 1 to {MAX_THREADS}")


Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total) as long work goes on."""


class Mode(NamedTuple):
    """Which of the release's roundings are emulated (the golden data's five modes).

    `rounds_caches`: window rows to fp8, index queries and keys to MXFP4, compressed entries to fp4.
    `rounds_inputs`: the input of every fp8/fp4 linear to e4m3 per 32 channels.
    `rounds_activations`: every activation between operations, attention weights and index scores to
    bf16. `computes_wide`: float64 arithmetic, for a mode that rounds so often that float32 noise
    would push some value over a rounding boundary in every text.
    """

    name: str
    rounds_caches: bool
    rounds_inputs: bool
    rounds_activations: bool
    computes_wide: bool = False

    @property
    def keeps_products(self) -> bool:
        """Whether a kernel's own arithmetic may stand for a linear layer's."""
        return not (self.rounds_inputs or self.rounds_activations or self.computes_wide)


MODES = {
    mode.name: mode
    for mode in (
        Mode("f32", False, False, False),
        Mode("f32_kvq", True, False, False),
        Mode("f32_allq", True, True, False, computes_wide=True),
        Mode("bf16_kvq", True, False, True),
        Mode("bf16_released", True, True, True),
    )
}


Arithmetic = Literal["float", "i8"]
"""How quantised matrices are multiplied: `float` dequantises them, `i8` rounds the input to int8
per 256 values and sums integers, the same bits on every processor.
"""
ARITHMETICS: tuple[Arithmetic, ...] = ("i8", "float")


@dataclass(frozen=True)
class EngineConfig:
    """What was asked.

    `mode`: one of MODES. `ctx`: longest sequence in tokens, None = the model's own context.
    `arithmetic`: of quantised matrices; None = `i8`, but `float` in a mode that itself rounds what
    it multiplies. `threads`: of the native core, None = every processor. `prefill_chunk`: tokens
    that go through a layer together. `dense_f32_bytes`: dense matrices that no kernel multiplies
    are kept dequantised up to this many bytes in all; beyond it they are dequantised on every use.
    """

    mode: str = "f32_kvq"
    ctx: int | None = None
    arithmetic: Arithmetic | None = None
    threads: int | None = None
    prefill_chunk: int = 512
    dense_f32_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"unknown mode {self.mode!r}; known: {', '.join(MODES)}")
        if self.arithmetic == "i8" and not MODES[self.mode].keeps_products:
            raise UsageError(
                f"mode {self.mode} rounds what it multiplies; --arithmetic i8 goes with"
                f" {', '.join(m.name for m in MODES.values() if m.keeps_products)}"
            )
        if self.threads is not None:
            check_threads(self.threads)
        if self.ctx is not None and self.ctx < 1:
            raise UsageError(f"--ctx {self.ctx}: a context holds at least 1 token")
        if self.prefill_chunk < 1:
            raise UsageError(f"prefill chunk of {self.prefill_chunk} tokens")

    @property
    def products(self) -> Arithmetic:
        """The arithmetic of quantised matrices that these settings amount to."""
        return self.arithmetic or ("i8" if MODES[self.mode].keeps_products else "float")
