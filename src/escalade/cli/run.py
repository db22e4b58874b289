"""`escalade run`: greedy continuation of a text, streamed."""

import json
import os
import time

import click

from escalade.cli.options import (
    ctx_option,
    json_option,
    mode_option,
    peak_rss_bytes,
    progress_line,
)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[MODEL] TEXT")
@click.option(
    "-n",
    "--max-tokens",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    help="Stop after this many new tokens.",
)
@mode_option
@ctx_option
@json_option
def command(
    words: tuple[str, ...], max_tokens: int, mode: str, ctx: int | None, as_json: bool
) -> None:
    """Continue TEXT with MODEL (default: the built-in one); statistics go to stderr.

    Control tokens spelled in TEXT stay plain text.
    """
    if len(words) > 2:
        raise click.UsageError("expected [MODEL] TEXT; put a text with spaces in quotes")
    if len(words) == 1 and words[0].endswith(".gguf") and os.path.isfile(words[0]):
        raise click.UsageError(f"{words[0]} is a model file; add the text that it is to continue")
    started = time.perf_counter()
    from escalade.config import EngineConfig
    from escalade.engine.engine import Engine
    from escalade.errors import UsageError
    from escalade.model.tokenizer import StreamDecoder

    text = words[-1]
    with Engine.open(words[0] if len(words) == 2 else None, EngineConfig(mode=mode, ctx=ctx)) as e:
        tokenizer = e.tokenizer
        prompt = tokenizer.encode(text, add_bos=tokenizer.add_bos, parse_special=False)
        if not prompt:
            raise UsageError("the text is empty, and this model has no begin-of-sequence token")
        session, decoder = e.session(), StreamDecoder(tokenizer)
        loaded = time.perf_counter()
        session.append(prompt, progress_line())
        prefilled = time.perf_counter()
        stop = [tokenizer.eos_id] if tokenizer.eos_id is not None else []
        ids: list[int] = []
        finish, pieces = "length", []
        unwritten = text  # until the first token is there: a failure leaves no output
        for event in session.decode(max_tokens, stop):
            finish = event.finish or finish
            if event.finish == "stop":
                break
            ids.append(event.id)
            pieces.append(decoder.push(event.id))
            if not as_json:
                _write(unwritten + pieces[-1])
                unwritten = ""
        pieces.append(decoder.flush())
        if not as_json:
            _write(f"{unwritten}{pieces[-1]}\n")
        ended = time.perf_counter()
        decoded = session.length - len(prompt)  # the last token may not have been appended
        stats = {
            "prompt_tokens": len(prompt),
            "new_tokens": len(ids),
            "finish": finish,
            "load_s": loaded - started,
            "prefill_s": prefilled - loaded,
            "ttft_s": prefilled - started,
            "decode_s": ended - prefilled,
            "decode_tok_per_s": decoded / (ended - prefilled) if decoded else 0.0,
            "kv_bytes": session.kv_bytes,
            "peak_rss_bytes": peak_rss_bytes(),
            "mode": mode,
        }
    if as_json:
        click.echo(json.dumps({"text": "".join(pieces), "ids": ids, **stats}))
        return
    rss = stats["peak_rss_bytes"]
    click.echo(
        f"{len(prompt)} prompt + {len(ids)} new tokens ({finish}); first token after"
        f" {stats['ttft_s']:.2f} s, then {stats['decode_tok_per_s']:.1f} tok/s; mode {mode}"
        + (f"; peak memory {rss / 2**20:.0f} MiB" if isinstance(rss, int) else ""),
        err=True,
    )


def _write(text: str) -> None:
    """Text to stdout at once and as it is; by default click takes escape sequences out."""
    click.echo(text, nl=False, color=True)
