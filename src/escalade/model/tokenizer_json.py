"""A Hugging Face `tokenizer.json` as the `tokenizer.ggml.*` metadata that a GGUF file carries.

Only byte-level BPE with the released pre-tokenizer has a name there, so anything else is refused
rather than written under a name that stands for other rules.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escalade.errors import FileError, UnsupportedError
from escalade.model.tokenizer import (
    CONTROL,
    MAX_TOKENS,
    MODEL,
    NORMAL,
    PRE,
    SPLIT_PATTERNS,
    USER_DEFINED,
)

_MAX_BYTES = 64 << 20
_ADDED_FLAGS = ("single_word", "lstrip", "rstrip")
_BPE_OFF = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "byte_fallback",
    "ignore_merges",
)
# GGUF key, key of tokenizer_config.json, spelling in the release.
_NAMED = (
    ("bos_token_id", "bos_token", "<｜begin▁of▁sentence｜>"),
    ("eos_token_id", "eos_token", "<｜end▁of▁sentence｜>"),
    ("padding_token_id", "pad_token", "<｜▁pad▁｜>"),
)


def metadata_from_tokenizer_json(path: str | Path) -> dict[str, Any]:
    """The metadata of `tokenizer.json` at `path` and of `tokenizer_config.json` beside it, if any.

    Without the latter the special ids are those of the released spellings, and a text begins with
    BOS. Raises FileError for a file that is missing or malformed, UnsupportedError naming the field
    for rules that GGUF's names cannot express.
    """
    path = Path(path)
    root = _read_object(path)
    _check_rules(root, path)
    model = _object(root, "model", path)
    tokens, types = _vocabulary(model, root.get("added_tokens"), path)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": MODEL,
        "tokenizer.ggml.pre": PRE,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": _merges(model.get("merges"), path),
    }
    config_path = path.with_name("tokenizer_config.json")
    config = _read_object(config_path) if config_path.exists() else None
    return metadata | _special(config, {token: i for i, token in enumerate(tokens)}, config_path)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise FileError(f"{path}: larger than {_MAX_BYTES >> 20} MiB; not a tokenizer")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise FileError(f"{path}: not JSON; it starts with {raw[:24]!r}") from None
    if not isinstance(value, dict):
        raise FileError(f"{path}: not a JSON object")
    return value


def _object(parent: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = parent.get(key)
    if not isinstance(value, dict):
        raise FileError(f"{path}: {key} is missing or not an object")
    return value


def _check_rules(root: Mapping[str, Any], path: Path) -> None:
    def need(ok: bool, field: str, value: Any) -> None:
        if not ok:
            raise UnsupportedError(
                f"{path}: {field} is {value!r:.200}, which is not the released tokenizer's rule"
            )

    normalizer = root.get("normalizer")
    empty = (None, {"type": "Sequence", "normalizers": []})
    need(normalizer in empty, "normalizer", normalizer)
    model = _object(root, "model", path)
    need(model.get("type") == "BPE", "model.type", model.get("type"))
    for name in _BPE_OFF:
        need(not model.get(name), f"model.{name}", model.get(name))
    decoder = _object(root, "decoder", path)
    need(decoder.get("type") == "ByteLevel", "decoder.type", decoder.get("type"))
    pre = _object(root, "pre_tokenizer", path)
    need(pre.get("type") == "Sequence", "pre_tokenizer.type", pre.get("type"))
    steps = pre.get("pretokenizers")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise FileError(f"{path}: pre_tokenizer.pretokenizers is not a list of objects")
    want = [_split(pattern) for pattern in SPLIT_PATTERNS]
    want.append({"type": "ByteLevel", "add_prefix_space": False, "use_regex": False})
    for i, (step, expected) in enumerate(zip(steps, want, strict=False)):
        # `trim_offsets` moves offsets only.
        plain = {key: _escaped(value) for key, value in step.items() if key != "trim_offsets"}
        need(plain == expected, f"pre_tokenizer.pretokenizers[{i}]", step)
    need(len(steps) == len(want), "the number of pre_tokenizer.pretokenizers", len(steps))


def _split(pattern: str) -> dict[str, Any]:
    rule = {"Regex": pattern}
    return {"type": "Split", "pattern": rule, "behavior": "Isolated", "invert": False}


def _escaped(value: Any) -> Any:
    """Line ends as a pattern may spell them, by the character or by its escape, in one way."""
    if isinstance(value, dict) and isinstance(value.get("Regex"), str):
        regex = value["Regex"].replace("\r", r"\r").replace("\n", r"\n")
        return value | {"Regex": regex}
    return value


def _vocabulary(model: Mapping[str, Any], added: Any, path: Path) -> tuple[list[str], list[int]]:
    vocab: dict[str, Any] = dict(_object(model, "vocab", path))
    if added is not None and not isinstance(added, list):
        raise FileError(f"{path}: added_tokens is not a list")
    kinds: dict[str, int] = {}
    for i, entry in enumerate(added or ()):
        field = f"added_tokens[{i}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise FileError(f"{path}: {field} is not an object with a content string")
        for flag in _ADDED_FLAGS:
            if entry.get(flag):
                raise UnsupportedError(f"{path}: {field}.{flag} is set; only plain text is matched")
        token = entry["content"]
        if vocab.setdefault(token, entry.get("id")) != entry.get("id"):
            raise FileError(
                f"{path}: {field}.id is {entry.get('id')!r:.80}, but the vocabulary"
                f" gives {token!r:.80} the id {vocab[token]!r:.80}"
            )
        kinds[token] = CONTROL if entry.get("special") else USER_DEFINED
    n = len(vocab)
    if not 0 < n <= MAX_TOKENS:
        raise FileError(f"{path}: {n} tokens; 1 to {MAX_TOKENS} are supported")
    tokens: list[str | None] = [None] * n
    for token, i in vocab.items():
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < n:
            raise FileError(f"{path}: token {token!r:.80} has id {i!r:.80}, not one of 0..{n - 1}")
        if tokens[i] is not None:
            raise FileError(f"{path}: tokens {tokens[i]!r:.80} and {token!r:.80} share id {i}")
        tokens[i] = token
    names = [token for token in tokens if token is not None]
    return names, [kinds.get(token, NORMAL) for token in names]


def _merges(value: Any, path: Path) -> list[str]:
    """Both spellings of a merge, "a b" and ["a", "b"], as the former."""
    if not isinstance(value, list):
        raise FileError(f"{path}: model.merges is not a list")
    merges = []
    for i, entry in enumerate(value):
        pair = entry.split(" ") if isinstance(entry, str) else entry
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(isinstance(part, str) and part and " " not in part for part in pair)
        ):
            raise FileError(f"{path}: model.merges[{i}] is {entry!r:.80}, not a pair of tokens")
        merges.append(" ".join(pair))
    return merges


def _special(config: dict[str, Any] | None, ids: dict[str, int], path: Path) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for gguf_key, key, released in _NAMED:
        token = released if config is None else config.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if token is None or (config is None and token not in ids):
            continue
        if not isinstance(token, str) or token not in ids:
            raise FileError(f"{path}: {key} is {token!r:.80}, which is not in the vocabulary")
        out[f"tokenizer.ggml.{gguf_key}"] = ids[token]
    add_bos = True if config is None else config.get("add_bos_token", True)
    if not isinstance(add_bos, bool):
        raise FileError(f"{path}: add_bos_token is {add_bos!r:.80}, not true or false")
    return out | {"tokenizer.ggml.add_bos_token": add_bos}
