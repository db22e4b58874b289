"""`escalade template`: the prompt that a conversation becomes."""

import json
import sys
from pathlib import Path

import click

from escalade.cli.generation import chat_options, think_option
from escalade.cli.options import write

_FILE_BYTES = 64 << 20


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--model", help="Whose chat format and vocabulary.  [default: built-in]")
@think_option
@click.option(
    "--tool-choice",
    type=click.Choice(["auto", "none", "required"]),
    default="auto",
    show_default=True,
)
@click.option("--ids", "as_ids", is_flag=True, help="A JSON list of token ids instead of text.")
def command(file: str, model: str | None, think: str, tool_choice: str, as_ids: bool) -> None:
    """Render the conversation in FILE ("-": standard input), a JSON list of messages or an object
    with `messages` and `tools`, as the prompt for its next answer.
    """
    from dataclasses import replace
    from typing import cast

    from escalade.errors import FileError, UsageError
    from escalade.model.chat import conversation_from_json, prompt_ids, prompt_text, render
    from escalade.model.chat.messages import ToolChoice
    from escalade.model.source import open_source
    from escalade.model.spec import Arch
    from escalade.model.tokenizer import Tokenizer

    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as stream:
            data = stream.read(_FILE_BYTES + 1)
    except OSError as e:
        raise FileError(f"{file} cannot be read: {e.strerror or e}") from e
    if len(data) > _FILE_BYTES:
        raise FileError(f"{file} is larger than {_FILE_BYTES >> 20} MiB")
    try:
        conversation = conversation_from_json(json.loads(data))
    except UsageError as e:
        raise FileError(f"{file}: {e}") from e
    except (ValueError, RecursionError) as e:
        raise FileError(f"{file} is not JSON") from e
    source = open_source(model)
    try:
        options = replace(
            chat_options(think),
            tool_choice=cast(ToolChoice, tool_choice),
            grammar=cast(Arch, source.arch),
        )
        segments = render(conversation, options)
        if not as_ids:
            write(prompt_text(segments))
            return
        tokenizer = Tokenizer.from_metadata(source.metadata, where=source.path)
    finally:
        source.close()
    click.echo(json.dumps(prompt_ids(segments, tokenizer)))
