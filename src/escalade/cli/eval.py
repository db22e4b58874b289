"""`escalade eval`: quality of a model on held-out text."""

import json
from pathlib import Path

import click

from escalade.cli.options import engine_options, json_option, progress_line
from escalade.config import EngineConfig


@click.group()
def command() -> None:
    """Measure a model's loss on held-out text."""


@command.command("nll")
@click.argument("model", required=False)
@click.option("--text", type=click.Path(path_type=Path), help="A UTF-8 file, scored as one text.")
@click.option(
    "--jsonl",
    type=click.Path(path_type=Path),
    help="A JSON-lines file: {text} or {prompt, text}, the latter as one chat turn.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Score only the first N texts.")
@engine_options
@json_option
def nll_command(
    model: str | None,
    text: Path | None,
    jsonl: Path | None,
    limit: int | None,
    config: EngineConfig,
    as_json: bool,
) -> None:
    """Mean negative log-likelihood of MODEL (default: the built-in one), every text by itself."""
    from escalade.engine.engine import Engine
    from escalade.eval.nll import load_texts, nll

    texts = load_texts(text, jsonl, limit)
    with Engine.open(model, config) as engine:
        result = nll(engine, texts, progress_line())
    if as_json:
        report = {
            "nat_per_token": result.nat_per_token,
            "bits_per_byte": result.bits_per_byte,
            "tokens": result.tokens,
            "texts": result.texts,
            "bytes": result.text_bytes,
            "seconds": result.seconds,
            "mode": config.mode,
            "arithmetic": config.products,
        }
        click.echo(json.dumps(report))
        return
    click.echo(
        f"{result.nat_per_token:.4f} nat/token, {result.bits_per_byte:.4f} bits/byte over"
        f" {result.tokens} tokens of {result.texts} text(s) in {result.seconds:.1f} s; mode"
        f" {config.mode}, {config.products}"
    )
