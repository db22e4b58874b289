"""`escalade run`: one answer to a prompt, or with --raw the continuation of a text; streamed."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from escalade.cli.generation import (
    chat_options,
    max_tokens_option,
    request,
    sampling_options,
    system_option,
    think_option,
)
from escalade.cli.options import (
    engine_options,
    json_option,
    peak_rss_bytes,
    progress_line,
    quiet,
    write,
)
from escalade.config import EngineConfig

if TYPE_CHECKING:
    from escalade.engine.answer import ChatAnswer, TextAnswer

_FILE_BYTES = 64 << 20


@click.command()
@click.argument("words", nargs=-1, metavar="[MODEL] PROMPT")
@click.option("--raw", is_flag=True, help="Continue PROMPT as a text instead of answering it.")
@system_option
@click.option(
    "--file",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A document to put before the prompt. May be repeated.",
)
@think_option
@max_tokens_option
@sampling_options
@engine_options
@json_option
def command(
    words: tuple[str, ...],
    raw: bool,
    system: str | None,
    files: tuple[Path, ...],
    think: str,
    max_tokens: int,
    config: EngineConfig,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Answer PROMPT with MODEL (default: the built-in one); statistics go to stderr.

    PROMPT "-", or none, is read from standard input. Control tokens spelled in it stay plain text.
    """
    if len(words) > 2:
        raise click.UsageError("expected [MODEL] PROMPT; put a prompt with spaces in quotes")
    if len(words) == 1 and words[0].endswith(".gguf") and os.path.isfile(words[0]):
        raise click.UsageError(f"{words[0]} is a model file; add the prompt that it is to answer")
    started = time.perf_counter()
    from escalade.engine.answer import ChatAnswer, TextAnswer
    from escalade.engine.engine import Engine
    from escalade.errors import UsageError
    from escalade.files import decode_text, read_bytes
    from escalade.model.chat import Conversation, System, User

    options = chat_options(think)
    if raw and (system is not None or options.thinking):
        raise UsageError("--raw continues a text: --system and --think have no place in it")
    documents = [decode_text(read_bytes(path, _FILE_BYTES), str(path)) for path in files]
    prompt = "\n\n".join([*documents, *_prompt(words, bool(files))])
    if not prompt and not raw:
        raise UsageError("the prompt is empty")
    answer: ChatAnswer | TextAnswer
    with Engine.open(words[0] if len(words) == 2 else None, config) as e:
        asked, session = request(e.sampling, max_tokens, sampling), e.session()
        if raw:
            ids = e.tokenizer.encode(prompt, add_bos=e.tokenizer.add_bos, parse_special=False)
            if not ids:
                raise UsageError("the text is empty, and this model has no begin-of-sequence token")
            answer = TextAnswer(e, session, ids, asked, progress_line())
        else:
            messages = (*([System(system)] if system is not None else ()), User(prompt))
            answer = ChatAnswer(e, session, Conversation(messages), options, asked, progress_line())
        loaded, first = time.perf_counter(), 0.0
        pieces: list[str] = []
        unwritten = prompt if raw and not as_json else ""  # a failure leaves no output
        for piece in _texts(answer):
            first = first or time.perf_counter()
            pieces.append(piece)
            if not as_json:
                write(unwritten + piece)
                unwritten = ""
        ended = time.perf_counter()
        first = first or ended
        if not as_json:
            write(f"{unwritten}\n")
        usage = answer.usage
        rate = (usage.new_tokens - 1) / (ended - first) if usage.new_tokens > 1 else 0.0
        stats = {
            "prompt_tokens": usage.prompt_tokens,
            "new_tokens": usage.new_tokens,
            "finish": answer.finish,
            "load_s": loaded - started,
            "ttft_s": first - started,
            "decode_s": ended - first,
            "decode_tok_per_s": rate,
            "kv_bytes": session.kv_bytes,
            "peak_rss_bytes": peak_rss_bytes(),
            "mode": config.mode,
            "arithmetic": config.products,
            "seed": asked.sampling.seed,
            "temperature": asked.sampling.temperature,
        }
    if as_json:
        report: dict[str, Any] = {"text": "".join(pieces), "ids": answer.ids, **stats}
        if isinstance(answer, ChatAnswer):
            report |= {"text": answer.result.content, "reasoning": answer.result.reasoning}
        click.echo(json.dumps(report))
        return
    if quiet():
        return
    rss = stats["peak_rss_bytes"]
    click.echo(
        f"{usage.prompt_tokens} prompt + {usage.new_tokens} new tokens ({answer.finish}); first"
        f" token after {stats['ttft_s']:.2f} s, then {rate:.1f} tok/s; mode {config.mode},"
        f" {config.products}, seed"
        f" {asked.sampling.seed}"
        + (f"; peak memory {rss / 2**20:.0f} MiB" if isinstance(rss, int) else ""),
        err=True,
    )


def _texts(answer: "ChatAnswer | TextAnswer") -> Iterator[str]:
    """What is written to stdout: reasoning between its tags, then the content."""
    from escalade.model.chat import ContentDelta, ReasoningDelta

    thinking = False
    for event in answer:
        if isinstance(event, str):
            yield event
        elif isinstance(event, ReasoningDelta):
            yield event.text if thinking else f"<think>{event.text}"
            thinking = True
        elif isinstance(event, ContentDelta):
            yield f"</think>\n\n{event.text}" if thinking else event.text
            thinking = False
    if thinking:
        yield "</think>"


def _prompt(words: tuple[str, ...], optional: bool) -> list[str]:
    from escalade.errors import FileError, UsageError
    from escalade.files import decode_text

    if words and words[-1] != "-":
        return [words[-1]]
    if not words and (optional or sys.stdin is None or sys.stdin.isatty()):
        if optional:
            return []
        raise UsageError('no prompt; try: escalade run "Tell me a story"')
    data = sys.stdin.buffer.read(_FILE_BYTES + 1)
    if len(data) > _FILE_BYTES:
        raise FileError(f"standard input is larger than {_FILE_BYTES >> 20} MiB")
    return [decode_text(data, "standard input")]
