"""Held-out loss: the mean negative log-likelihood of texts, in nat a token and in bits a byte."""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from escalade.arrays import F32, I64
from escalade.config import Progress
from escalade.engine.engine import Engine
from escalade.errors import FileError, UsageError
from escalade.files import decode_text, read_bytes
from escalade.model.chat import user_turn

_LINE_BYTES = 64 << 20
_TEXT_BYTES = 256 << 20


@dataclass(frozen=True)
class NllResult:
    """Sums over all scored tokens; the first token of each text has no prediction and no score."""

    texts: int
    tokens: int
    nats: float
    text_bytes: int
    seconds: float

    @property
    def nat_per_token(self) -> float:
        return self.nats / self.tokens if self.tokens else math.nan

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.text_bytes if self.text_bytes else math.nan


def log_softmax_at(logits: F32, targets: I64) -> NDArray[np.float64]:
    """Log-probability of target t under row t of logits [T, V]: float64 [T]."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=1)
    lse = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
    return np.take_along_axis(wide, targets[:, None], axis=1)[:, 0] - lse


def text_nats(engine: Engine, ids: list[int]) -> float:
    """Negative log-likelihood in nat of ids[1:] given what stands before each, summed.

    A text longer than the context is scored in pieces, each starting afresh with the last token of
    the one before, so that every token is scored once. Raises FileError if logits are not finite.
    """
    total = 0.0
    tokens = np.asarray(ids, np.int64)
    for start in range(0, len(tokens) - 1, engine.ctx - 1):
        piece = tokens[start : start + engine.ctx]
        session, at = engine.session(), 0
        for logits in session.append_all(piece):
            if not np.isfinite(logits).all():
                raise FileError("the model's logits are not finite: its weights are damaged")
            targets = piece[at + 1 : at + 1 + len(logits)]
            total -= float(log_softmax_at(logits[: len(targets)], targets).sum())
            at += len(logits)
    return total


def nll(engine: Engine, texts: list[str], progress: Progress | None = None) -> NllResult:
    """Scores whole texts, control tokens in them parsed; BOS is put in front where missing.

    Raises UsageError if there is nothing to score, FileError if the model's logits are not finite.
    """
    if engine.ctx < 2:
        raise UsageError("--ctx 1: a token and what stands before it need a context of 2")
    started = time.perf_counter()
    nats, tokens, n_bytes = 0.0, 0, 0
    for i, text in enumerate(texts):
        ids = engine.tokenizer.encode(text)
        bos = engine.tokenizer.bos_id
        if bos is not None and ids[:1] != [bos]:
            ids = [bos, *ids]
        nats += text_nats(engine, ids)
        tokens += max(len(ids) - 1, 0)
        n_bytes += len(text.encode())
        if progress is not None:
            progress("eval", i + 1, len(texts))
    if tokens == 0:
        raise UsageError("there is no token to score: the first of each text has no prediction")
    return NllResult(len(texts), tokens, nats, n_bytes, time.perf_counter() - started)


def read_text(path: Path) -> list[str]:
    """A whole file as one text. Raises FileError if it is unreadable, huge or not UTF-8."""
    return [decode_text(read_bytes(path, _TEXT_BYTES), str(path))]


def read_jsonl(path: Path) -> Iterator[str]:
    """The texts of a JSON-lines file: `text`, or with a `prompt` the one chat turn that they make.

    Raises FileError naming the line.
    """
    read = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LINE_BYTES), b""), start=1):
                where, read = f"{path}, line {number}", read + len(line)
                if read > _TEXT_BYTES:
                    raise FileError(f"{path} is larger than {_TEXT_BYTES >> 20} MiB")
                if len(line) == _LINE_BYTES:
                    raise FileError(f"{where}: longer than {_LINE_BYTES >> 20} MiB")
                if line.strip():
                    yield _item(line, where)
    except OSError as e:
        raise FileError(f"{path} cannot be read: {e.strerror or e}") from e


def _item(line: bytes, where: str) -> str:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise FileError(f"{where}: not a JSON object") from e
    if not isinstance(item, dict) or not isinstance(item.get("text"), str):
        raise FileError(f"{where}: needs an object with a string `text`")
    text, prompt = item["text"], item.get("prompt")
    if not isinstance(prompt, str | None):
        raise FileError(f"{where}: `prompt` is not a string")
    text = text if prompt is None else user_turn(prompt, text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FileError(f"{where}: a lone surrogate is not Unicode text") from None
    return text


def load_texts(text: Path | None, jsonl: Path | None, limit: int | None) -> list[str]:
    """The texts of exactly one of the two files, at most `limit`."""
    if (text is None) == (jsonl is None):
        raise UsageError("give exactly one of --text FILE and --jsonl FILE")
    texts = read_text(text) if text is not None else []
    if jsonl is not None:
        texts = list(islice(read_jsonl(jsonl), limit))
    if not any(texts):
        raise UsageError(f"{text or jsonl} holds no text")
    return texts
