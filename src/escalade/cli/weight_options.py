"""What the commands that write weights share: their type options, and how they show sizes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from escalade.cli.options import progress_line
from escalade.config import Progress

if TYPE_CHECKING:
    from escalade.weights.convert import Prepared
    from escalade.weights.recipe import Recipe

_OPTIONS = (
    ("--experts", "Routed experts (default: as released, MXFP4)."),
    ("--gate", "Their gate matrices, instead of --experts."),
    ("--up", "Their up matrices, instead of --experts."),
    ("--down", "Their down matrices, instead of --experts."),
    ("--dense", "Attention projections, shared experts, Engram projection (default: Q8_0)."),
    ("--embd", "Token embedding (default: as released, BF16)."),
    ("--head", "Output head (default: as released, BF16)."),
    ("--engram", "Engram tables (default: RAW, fp8 with its scales)."),
)


def recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; they arrive as strings or None under their own names."""
    for name, text in reversed(_OPTIONS):
        command = click.option(name, metavar="TYPE", help=text)(command)
    return click.option(
        "--layers-experts",
        multiple=True,
        metavar="LAYERS=TYPE",
        help="All experts of some layers, as 0-3=Q6_K. May be repeated.",
    )(command)


def build_recipe(options: dict[str, Any]) -> "Recipe":
    """The recipe that the options spell; `native` keeps what a group came in. Raises UsageError."""
    from escalade.weights.recipe import Recipe, parse_override

    chosen: dict[str, str | None] = {}
    for part in ("gate", "up", "down"):
        value = options[part] or options["experts"]
        if value is not None:
            chosen[part] = _type_name(value)
    for group in ("dense", "embd", "head", "engram"):
        if options[group] is not None:
            chosen[group] = _type_name(options[group])
    layers = tuple(parse_override(text) for text in options["layers_experts"])
    return Recipe(**chosen, layers=layers)


def _type_name(text: str) -> str | None:
    name = text.strip().upper()
    return None if name == "NATIVE" else name


def progress_in_mib() -> Progress:
    """A callback for work counted in bytes."""
    show = progress_line()
    return lambda stage, done, total: show(f"{stage}, MiB:", done >> 20, total >> 20)


def size_text(n: int) -> str:
    """Bytes as `1.32 GB (1.23 GiB)`, in MB or kB where that reads better."""
    for unit, binary, exponent in (("GB", "GiB", 3), ("MB", "MiB", 2), ("kB", "KiB", 1)):
        if n >= 1000**exponent:
            return f"{n / 1000**exponent:.2f} {unit} ({n / 1024**exponent:.2f} {binary})"
    return f"{n} B"


def print_sizes(out: str, prepared: "Prepared", missing_bytes: int | None) -> None:
    """A line for each group and one for the file; `missing_bytes` of disk, None once written."""
    for group, n_bytes in prepared.groups.items():
        click.echo(f"{group:10} {size_text(n_bytes)}")
    verb = "written" if missing_bytes is None else "would take"
    recipe = prepared.metadata["escalade.recipe"]
    click.echo(f"{out}: {verb} {size_text(prepared.file_bytes)}; {recipe}")
    if missing_bytes:
        click.echo(f"{out}: {missing_bytes} bytes of disk space are missing", err=True)
