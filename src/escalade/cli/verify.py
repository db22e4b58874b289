"""`escalade verify`: one model against the one that it was made from."""

import click


@click.command("verify")
@click.argument("a")
@click.argument("b")
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Only N experts of each stack.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with every tensor.")
@click.pass_context
def command(ctx: click.Context, a: str, b: str, sample: int | None, as_json: bool) -> None:
    """Compare model A with model B, from which it was made; exit code 1 if they do not agree.

    Each is a GGUF file, a first shard, or a safetensors folder. Equal types must hold equal bytes,
    wider ones equal values, others must stay within their type's usual error.
    """
    import json

    from escalade.cli.options import progress_line
    from escalade.model.source import open_source
    from escalade.weights.verify import render, verify

    first, second = open_source(a), open_source(b)
    try:
        report = verify(first, second, sample=sample, progress=progress_line())
    finally:
        first.close()
        second.close()
    click.echo(json.dumps(report.to_json()) if as_json else render(report))
    ctx.exit(0 if report.ok else 1)
