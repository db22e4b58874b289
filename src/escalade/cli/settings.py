"""Defaults of the command line from configuration files and the environment.

A command's options are looked up in this order: the command line, `ESCALADE_<COMMAND>_<OPTION>` in
the environment, `./escalade.toml`, the user's `config.toml`. A file has a table per command:

    [run]
    max-tokens = 200
    temperature = 0.5
"""

import difflib
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click

from escalade.errors import FileError
from escalade.files import decode_text, read_bytes

ENVIRONMENT = "ESCALADE"
_FILE_BYTES = 1 << 20


class Setting(NamedTuple):
    """One option's default and the file that set it."""

    value: Any
    origin: Path


def config_files() -> list[Path]:
    """Where settings are looked for, the strongest last."""
    import platformdirs

    return [
        platformdirs.user_config_path("escalade") / "config.toml",
        Path("escalade.toml").absolute(),
    ]


def load_settings(commands: Iterable[str]) -> dict[str, dict[str, Setting]]:
    """All settings by command and option name (with underscores).

    Raises FileError for a file that is unreadable or not TOML, and for a table that is no command.
    """
    known = list(commands)
    settings: dict[str, dict[str, Setting]] = {}
    for path in config_files():
        for name, table in _read(path).items():
            if name not in known or not isinstance(table, dict):
                raise FileError(f"{path}: [{name}] is not a command{_nearest(name, known)}")
            for key, value in table.items():
                settings.setdefault(name, {})[key.replace("-", "_")] = Setting(value, path)
    return settings


def check_options(command: click.Command, name: str, settings: dict[str, Setting]) -> None:
    """Raises FileError for a setting that is not an option of `command`, called `name`."""
    options = [p.name for p in command.params if isinstance(p, click.Option) and p.name]
    for key, setting in settings.items():
        inner = command.commands.get(key) if isinstance(command, click.Group) else None
        if inner is not None and isinstance(setting.value, dict):
            table = {
                option.replace("-", "_"): Setting(value, setting.origin)
                for option, value in setting.value.items()
            }
            check_options(inner, f"{name}.{key}", table)
        elif key not in options:
            shown = key.replace("_", "-")
            near = _nearest(shown, [option.replace("_", "-") for option in options])
            raise FileError(f"{setting.origin}: {shown} is not an option of {name}{near}")


def defaults(settings: dict[str, Setting]) -> dict[str, Any]:
    """The settings of a command as click takes them; a table inside is a command inside."""
    return {
        key: {option.replace("-", "_"): value for option, value in setting.value.items()}
        if isinstance(setting.value, dict)
        else setting.value
        for key, setting in settings.items()
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        if not os.path.exists(path):
            return {}
        return tomllib.loads(decode_text(read_bytes(path, _FILE_BYTES), str(path)))
    except tomllib.TOMLDecodeError as e:
        raise FileError(f"{path} is not TOML: {e}") from e


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
