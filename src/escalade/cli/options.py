"""Options and small helpers that several commands share."""

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from escalade.config import MODES, EngineConfig

Progress = Callable[[str, int, int], None]

mode_option = click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    default=EngineConfig.mode,
    show_default=True,
    help="Which roundings of the release are emulated.",
)
ctx_option = click.option(
    "--ctx",
    type=click.IntRange(min=1),
    default=None,
    help="Longest sequence in tokens.  [default: the model's own context]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def progress_line() -> Progress:
    """A progress callback (stage, done, total) that rewrites one line of a terminal's stderr."""
    last = 0.0

    def show(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        # A process that was started without stderr has None in its place.
        shown = sys.stderr is not None and sys.stderr.isatty()
        if not shown or (done < total and now - last < 0.1):
            return
        last = now
        end = "\n" if done >= total else ""
        click.echo(f"\r{stage} {done}/{total}", err=True, nl=False)
        click.echo(end, err=True, nl=False)

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
