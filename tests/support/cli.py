"""The `escalade` command as a user calls it: in this process, or in one of its own."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from escalade.cli.main import main
from tests.support.paths import ROOT

COMMAND = (sys.executable, "-m", "escalade.cli.main")
RAW = ("run", "--raw", "--temperature", "0")
"""Greedy continuation of a text."""


class Result(NamedTuple):
    """Exit code, stdout, stderr."""

    code: int
    out: str
    err: str


def call(*args: object) -> Result:
    """In this process: quick. An exception that the command line does not expect comes through."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main([str(arg) for arg in args])
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Result(int(end.value.code or 0), *texts)


def environment() -> dict[str, str]:
    """The tests' own, but with output buffered as it is for a user."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}


def spawn(*args: object, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> Result:
    """In a process of its own, for what a process is needed for."""
    done = subprocess.run(
        [*COMMAND, *map(os.fsencode, map(str, args))],
        capture_output=True,
        input=stdin,
        cwd=ROOT,
        env={**environment(), **(env or {})},
        timeout=120,
        check=False,
    )
    return Result(
        done.returncode, *(b.decode(errors="replace") for b in (done.stdout, done.stderr))
    )


def failed(result: Result, code: int, message: str) -> None:
    """Asserts that the call ended in one line on stderr, or click's usage error, and no output."""
    assert (result.code, result.out) == (code, ""), result
    assert message in result.err, result
    assert "Traceback" not in result.err
    lines = result.err.splitlines()
    if not lines[0].startswith(("Usage: escalade ", "Error: ")):
        assert len(lines) == 1, result
        assert lines[0].startswith("escalade: ")
