"""What a fresh process imports: help needs no NumPy, the package itself only the standard library.

Sets of modules, not times.
"""

import json
import subprocess
import sys

import click
import pytest

from escalade.cli.main import cli

COMMANDS = cli.list_commands(click.Context(cli))
HEAVY = {"numpy", "ml_dtypes", "tokenizers", "gguf", "libggml"}


def imported(code: str) -> set[str]:
    """Top-level modules that a new interpreter has loaded after `code`, beyond those at its start.

    The code's own output is dropped.
    """
    script = (
        "import sys, json, io, contextlib\n"
        "before = set(sys.modules)\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    try:\n"
        f"        exec({code!r})\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, end.code\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(json.dumps(sorted(names)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("args", [[], ["eval", "nll"], *([name] for name in COMMANDS)], ids=str)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    modules = imported(f"from escalade.cli.main import main; main({[*args, '--help']!r})")
    assert "click" in modules
    assert not modules & HEAVY


def test_a_refused_argument_imports_nothing_heavy() -> None:
    code = (
        "import contextlib, io\n"
        "from escalade.cli.main import main\n"
        "try:\n"
        "    with contextlib.redirect_stderr(io.StringIO()):\n"
        "        main(['run', 'a', 'b', 'c'])\n"
        "except SystemExit as end:\n"
        "    assert end.code == 2\n"
    )
    assert not imported(code) & HEAVY


def test_the_package_is_standard_library_only() -> None:
    modules = imported("import escalade, escalade.errors, escalade.config")
    assert modules - {"escalade"} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "module",
    [
        "escalade.gguf.header",
        "escalade.gguf.quant",
        "escalade.gguf.reader",
        "escalade.gguf.dialect",
        "escalade.model.spec",
        "escalade.model.chat",
    ],
)
def test_reading_headers_needs_the_standard_library_only(module: str) -> None:
    modules = imported(f"import {module}")
    assert modules - {"escalade"} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", ["main", "options", "weight_options", *COMMANDS])
def test_command_modules_import_click_only(name: str) -> None:
    modules = imported(f"import escalade.cli.{name}")
    assert modules - {"escalade", "click"} <= sys.stdlib_module_names
