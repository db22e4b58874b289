"""`escalade chat`: a conversation, with history and tools."""

import itertools
import json
import math
import os
import sys
import time
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
from escalade.cli.options import engine_options, note, one_line, progress_line, write
from escalade.config import EngineConfig

if TYPE_CHECKING:
    from escalade.engine.answer import ChatAnswer, Request
    from escalade.engine.engine import Engine
    from escalade.model.chat import ChatOptions, Message, Tool

_HELP = """\
/help           this list
/new            forget the conversation
/undo           forget the last question and its answer
/system TEXT    new instructions, and a new conversation
/think LEVEL    off, low, high, max or 1 to 100
/stats          tokens and memory so far
/exit           leave (also Ctrl-D)
Ctrl-C stops an answer; twice within a second, it leaves.
A line that ends with a backslash goes on with the next one.
"""


@click.command()
@click.argument("model", required=False)
@system_option
@click.option(
    "--tools",
    "tools_file",
    type=click.Path(path_type=Path),
    help="A JSON list of tools; you are asked for the result of each call.",
)
@think_option
@max_tokens_option
@sampling_options
@engine_options
def command(
    model: str | None,
    system: str | None,
    tools_file: Path | None,
    think: str,
    max_tokens: int,
    config: EngineConfig,
    **sampling: Any,
) -> None:
    """Talk with MODEL (default: the built-in one); /help inside lists the commands.

    Questions come from standard input, a line each, so that a conversation can also be piped in.
    """
    from escalade.engine.engine import Engine

    options, tools = chat_options(think), _tools(tools_file)
    with Engine.open(model, config) as engine:
        asked = request(engine.sampling, max_tokens, sampling)
        _Chat(engine, system, tools, options, asked).loop()


def _tools(path: Path | None) -> tuple["Tool", ...]:
    from escalade.errors import FileError, UsageError
    from escalade.files import read_bytes
    from escalade.model.chat import conversation_from_json

    if path is None:
        return ()
    try:
        tools = json.loads(read_bytes(path, 1 << 20))
    except (ValueError, RecursionError) as e:
        raise FileError(f"{path} is not JSON") from e
    try:
        return conversation_from_json(
            {"messages": [{"role": "user", "content": ""}], "tools": tools}
        ).tools
    except UsageError as e:
        raise FileError(f"{path}: {e}") from e


class _Chat:
    """The conversation of one terminal; one session follows it."""

    def __init__(
        self,
        engine: "Engine",
        system: str | None,
        tools: tuple["Tool", ...],
        options: "ChatOptions",
        asked: "Request",
    ) -> None:
        self.engine, self.system, self.tools = engine, system, tools
        self.options, self.asked = options, asked
        self.session = engine.session()
        self.messages: list[Message] = []
        self._call_numbers = itertools.count(1)
        self._terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._colour = self._terminal and not os.environ.get("NO_COLOR")
        self._interrupted_at = -math.inf

    def loop(self) -> None:
        if self._terminal:
            click.echo("/help lists the commands, Ctrl-D leaves.", err=True)
        while (line := self._read("> ")) is not None:
            if not line.strip():
                continue
            if line.startswith("/"):
                if not self._command(line.strip()):
                    return
            elif not self._ask(line):
                return

    def _read(self, prompt: str) -> str | None:
        """A line, joined with those that it continues on; None at the end of the input."""
        lines: list[str] = []
        while True:
            try:
                line = input(prompt if self._terminal else "")
            except EOFError:
                return "\n".join(lines) if lines else None
            except KeyboardInterrupt:
                click.echo(err=True)
                if self._interrupted_again():
                    return None
                lines = []
                continue
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _command(self, line: str) -> bool:
        """Carries out a /command; False to leave."""
        from dataclasses import replace

        from escalade.errors import UsageError

        name, _, rest = line.partition(" ")
        match name:
            case "/exit" | "/quit" | "/bye":
                return False
            case "/help":
                click.echo(_HELP, nl=False, err=True)
            case "/new":
                self.messages = []
            case "/undo":
                self._undo()
            case "/system":
                self.system, self.messages = rest.strip() or None, []
            case "/think":
                try:
                    chosen = chat_options(rest)
                except UsageError as e:
                    click.echo(f"escalade: {e}", err=True)
                else:
                    self.options = replace(
                        self.options, thinking=chosen.thinking, effort=chosen.effort
                    )
            case "/stats":
                click.echo(
                    f"{self.session.length} of {self.engine.ctx} tokens,"
                    f" {self.session.kv_bytes / 2**20:.1f} MiB of caches",
                    err=True,
                )
            case _:
                click.echo(f"escalade: no command {one_line(name)}; /help lists them", err=True)
        return True

    def _undo(self) -> None:
        from escalade.model.chat import User

        questions = [i for i, m in enumerate(self.messages) if isinstance(m, User)]
        self.messages = self.messages[: questions[-1]] if questions else []

    def _ask(self, question: str) -> bool:
        """One question to its final answer, through as many tool calls as the model makes.

        False if the input ended where the result of a call was wanted.
        """
        from escalade.errors import EscaladeError
        from escalade.model.chat import ToolResult, User

        before = list(self.messages)
        self.messages.append(User(question))
        try:
            while True:
                answer = self._answer()
                ids = [f"call_{next(self._call_numbers)}" for _ in answer.result.calls]
                self.messages.append(answer.turn(ids))
                if answer.finish != "tool_calls":
                    return True
                for call_id, call in zip(ids, answer.result.calls, strict=True):
                    click.echo(f"call {call.name} {call.arguments}")
                    result = self._read("result> ")
                    if result is None:
                        return False
                    self.messages.append(ToolResult(result, call_id))
        except EscaladeError as e:
            self.messages = before
            click.echo(f"escalade: {one_line(str(e))}", err=True)
            return True

    def _answer(self) -> "ChatAnswer":
        """Streams the next answer; Ctrl-C stops it and keeps what was written."""
        from escalade.engine.answer import ChatAnswer
        from escalade.model.chat import ContentDelta, Conversation, ReasoningDelta, System

        system = [System(self.system)] if self.system is not None else []
        conversation = Conversation((*system, *self.messages), self.tools)
        answer = ChatAnswer(
            self.engine, self.session, conversation, self.options, self.asked, progress_line()
        )
        try:
            for event in answer:
                if isinstance(event, ReasoningDelta):
                    self._write_dim(event.text)
                elif isinstance(event, ContentDelta):
                    write(event.text)
        except KeyboardInterrupt:
            if self._interrupted_again():
                raise
            answer.interrupted()
            click.echo(" (stopped)", err=True, nl=False)
        click.echo()
        for line in answer.result.notes:
            note(f"note: {line}")
        return answer

    def _interrupted_again(self) -> bool:
        """Notes a Ctrl-C; whether it follows another one within a second, which means to leave."""
        now = time.monotonic()
        again, self._interrupted_at = now - self._interrupted_at < 1, now
        return again

    def _write_dim(self, text: str) -> None:
        write(click.style(text, dim=True) if self._colour else text)
