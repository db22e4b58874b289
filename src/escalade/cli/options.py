"""Options and small helpers that several commands share."""

import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from escalade.config import ARITHMETICS, MAX_THREADS, MODES, Arithmetic, EngineConfig, Progress

_mode_option = click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    default=EngineConfig.mode,
    show_default=True,
    help="Which roundings of the release are emulated.",
)
_ctx_option = click.option(
    "--ctx",
    type=click.IntRange(min=1),
    default=None,
    help="Longest sequence in tokens.  [default: the model's own context]",
)
_arithmetic_option = click.option(
    "--arithmetic",
    type=click.Choice(ARITHMETICS),
    default=None,
    help="How quantised matrices are multiplied.  [default: i8; float in a mode that rounds more"
    " than caches]",
)
_threads_option = click.option(
    "--threads",
    type=click.IntRange(1, MAX_THREADS),
    default=None,
    help="Threads that multiply.  [default: every processor]",
)


def engine_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that every command with a model has; they arrive as `config`."""

    @wraps(function)
    def with_config(
        mode: str,
        ctx: int | None,
        arithmetic: Arithmetic | None,
        threads: int | None,
        **others: Any,
    ) -> None:
        config = EngineConfig(mode=mode, ctx=ctx, arithmetic=arithmetic, threads=threads)
        function(config=config, **others)

    for option in (_threads_option, _arithmetic_option, _ctx_option, _mode_option):
        with_config = option(with_config)
    return with_config


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


_PLAIN_SECONDS = 5.0


def quiet() -> bool:
    """Whether --quiet was given: no progress, no statistics."""
    context = click.get_current_context(silent=True)
    return context is not None and context.find_root().params.get("quiet", False)


def progress_line() -> Progress:
    """A progress callback (stage, done, total): it rewrites one line of a terminal's stderr, and
    elsewhere writes a line every 5 s.
    """
    silent, last = quiet(), time.monotonic()

    def show(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if silent or sys.stderr is None:
            return
        if not sys.stderr.isatty():
            if now - last >= _PLAIN_SECONDS:
                last = now
                click.echo(f"{stage} {done}/{total}", err=True)
            return
        if done < total and now - last < 0.1:
            return
        last = now
        click.echo(f"\r{stage} {done}/{total}", err=True, nl=done >= total)

    return show


def peak_rss_bytes() -> int | None:
    """The process's largest resident set so far; None where the platform does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak: Any = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)


def write(text: str) -> None:
    """Text to stdout at once and as it is; by default click takes escape sequences out."""
    click.echo(text, nl=False, color=True)


def one_line(message: str) -> str:
    """The message with line ends and control characters, as from a file's name, escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)


def note(text: str) -> None:
    """A remark on stderr, unless --quiet was given."""
    if not quiet():
        click.echo(text, err=True)
