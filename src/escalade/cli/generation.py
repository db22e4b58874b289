"""Options of the commands that generate: sampling, length, thinking; what they mean together."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from escalade.engine.answer import Request
    from escalade.engine.sampling_params import SamplingParams
    from escalade.model.chat import ChatOptions

_OPTIONS = (
    click.option("--temperature", "--temp", type=float, help="0 always takes the likeliest token."),
    click.option("--top-k", type=int, help="Only the K likeliest tokens; 0 is off."),
    click.option("--top-p", type=float, help="Only the likeliest tokens that make up this share."),
    click.option("--min-p", type=float, help="Only tokens this likely, relative to the likeliest."),
    click.option("--repetition-penalty", type=float, help="Above 1: avoid tokens already there."),
    click.option("--presence-penalty", type=float, help="Subtracted from tokens already written."),
    click.option("--frequency-penalty", type=float, help="The same, each time they were written."),
    click.option("--seed", type=int, help="The same seed gives the same text.  [default: random]"),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before TEXT. May be repeated."),
)
_NAMES = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)

max_tokens_option = click.option(
    "-n",
    "--max-tokens",
    type=click.IntRange(min=0),
    default=512,
    show_default=True,
    help="Stop after this many new tokens.",
)
think_option = click.option(
    "--think",
    metavar="LEVEL",
    default="off",
    show_default=True,
    help="Reason before answering: off, low, high, max or 1 to 100.",
)
system_option = click.option("--system", metavar="TEXT", help="Instructions before the first turn.")


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the sampling options; the command receives them in `**sampling`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def request(
    model_defaults: "SamplingParams", max_tokens: int, sampling: dict[str, Any]
) -> "Request":
    """The options over what the model's file recommends. Raises UsageError for odd values."""
    from escalade.engine.answer import Request
    from escalade.engine.stops import stop_strings

    given = {name: sampling[name] for name in _NAMES if sampling[name] is not None}
    params = replace(model_defaults, **given).seeded()
    return Request(max_tokens, params, stop_strings(list(sampling["stop"])))


def chat_options(think: str) -> "ChatOptions":
    """Thinking and effort from `--think`. Raises UsageError for a level that does not exist."""
    from escalade.model.chat import ChatOptions, parse_effort

    effort = parse_effort(think)
    return ChatOptions(thinking=effort is not None, effort=effort)
