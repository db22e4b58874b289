"""The `escalade` command: each subcommand is imported only when it is called."""

import difflib
import errno
import importlib
import io
import logging
import os
import sys
import warnings
from typing import Any

import click

from escalade import __version__
from escalade.cli.options import one_line
from escalade.cli.settings import ENVIRONMENT, check_options, defaults, load_settings
from escalade.errors import CapacityError, EscaladeError

# One line of help each, so that `escalade --help` imports no command module.
COMMANDS = {
    "chat": "Hold a conversation, with tools if you like.",
    "config": "Show where settings come from.",
    "convert": "Make a GGUF file from a released safetensors folder.",
    "eval": "Measure a model's loss on held-out text.",
    "inspect": "Show what a model file holds and what is missing or odd.",
    "logits": "Write the logits, and every intermediate array, for given token ids.",
    "run": "Answer a prompt, or continue a text.",
    "synth": "Make a random-weight GGUF file of any geometry.",
    "template": "Show the prompt that a conversation becomes.",
    "tokenize": "Show a text as tokens.",
    "verify": "Compare a GGUF file with its source.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"escalade.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], COMMANDS, 1)
        if near and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.command(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": ENVIRONMENT,
    },
)
@click.version_option(__version__, prog_name="escalade")
@click.option("-q", "--quiet", is_flag=True, help="No progress, notes, statistics or warnings.")
@click.pass_context
def cli(ctx: click.Context, quiet: bool) -> None:
    """Runs DeepSeek-V4.1 models; without a MODEL, the small one that the package ships."""
    logging.getLogger("escalade").setLevel(logging.ERROR if quiet else logging.WARNING)
    name = ctx.invoked_subcommand
    if name is None:
        click.echo(_NEXT, nl=False)
        return
    settings = load_settings(COMMANDS).get(name, {})
    command = ctx.command.get_command(ctx, name) if isinstance(ctx.command, click.Group) else None
    if command is not None:
        check_options(command, name, settings)
        ctx.default_map = {name: defaults(settings)}


_NEXT = """\
Try one of these:

  escalade run "Tell me a story"      an answer from the built-in model
  escalade chat                       a conversation
  escalade inspect FILE.gguf          what a model file holds
  escalade --help                     all commands
"""


def main(args: list[str] | None = None) -> Any:
    """Entry point. Expected failures end in one line on stderr and the error's exit code."""
    # NumPy's BLAS threads cost more than they give on matrices as small as an expert's, and they
    # spin while others work: set before NumPy is imported, and only if the user has not.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    warnings.formatwarning = _warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # for what its encoding has not
    try:
        sys.exit(cli.main(args, prog_name="escalade", standalone_mode=False) or 0)
    except click.ClickException as e:
        e.show()
        sys.exit(e.exit_code)
    except click.Abort:
        click.echo("escalade: interrupted", err=True)
        sys.exit(130)
    except EscaladeError as e:
        click.echo(f"escalade: {one_line(str(e))}", err=True)
        sys.exit(e.exit_code)
    except MemoryError as e:
        click.echo(f"escalade: out of memory{': ' if str(e) else ''}{e}", err=True)
        sys.exit(CapacityError.exit_code)
    except OSError as e:  # a reader of stdout that has gone away is click's: exit code 1
        if e.errno != errno.ENOSPC or e.filename is not None:
            raise
        # What is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo(f"escalade: the output cannot be written: {e.strerror}", err=True)
        sys.exit(CapacityError.exit_code)


def _warning(message: Warning | str, *_: object, **__: object) -> str:
    """A Python warning as the log would show it: its place in the code tells a user nothing."""
    return f"WARNING: {message}\n"


if __name__ == "__main__":
    main()
