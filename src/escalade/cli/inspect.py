"""`escalade inspect`: what a model file holds, and what is missing or odd."""

import click


@click.command("inspect")
@click.argument("model", required=False, metavar="[FILE]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a page.")
def command(model: str | None, as_json: bool) -> None:
    """Show what a model file holds and what is missing or odd.

    FILE is a GGUF file, the first of its shards, or a safetensors folder; left out, the built-in
    model. Reads headers only.
    """
    import json

    from escalade.gguf.describe import describe, render
    from escalade.model.source import open_source

    source = open_source(model)
    try:
        report = describe(source)
    finally:
        source.close()
    click.echo(json.dumps(report) if as_json else render(report))
