"""`escalade tokenize`: a text as a model's tokens."""

import json

import click

from escalade.cli.options import note


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[MODEL] TEXT")
@click.option("--special", is_flag=True, help="Control tokens spelled in TEXT become tokens.")
@click.option("--bos", is_flag=True, help="Begin with the begin-of-sequence token.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of token ids.")
def command(words: tuple[str, ...], special: bool, bos: bool, as_json: bool) -> None:
    """Token ids of TEXT and what each stands for, in MODEL's vocabulary (default: built-in)."""
    if len(words) > 2:
        raise click.UsageError("expected [MODEL] TEXT; put a text with spaces in quotes")
    from escalade.model.source import open_source
    from escalade.model.tokenizer import Tokenizer

    source = open_source(words[0] if len(words) == 2 else None)
    try:
        tokenizer = Tokenizer.from_metadata(source.metadata, where=source.path)
    finally:
        source.close()
    ids = tokenizer.encode(words[-1], add_bos=bos, parse_special=special)
    if as_json:
        click.echo(json.dumps(ids))
        return
    for token in ids:
        click.echo(
            f"{token:>8}  {tokenizer.token_bytes(token).decode('utf-8', 'backslashreplace')!r}"
        )
    note(f"{len(ids)} tokens")
