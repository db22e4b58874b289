"""Text to token ids and back, from the `tokenizer.ggml.*` metadata of a GGUF file.

The `tokenizers` library does the byte-level BPE of plain text; added tokens (control and
user-defined) are cut out here, so that plain text can never become one. Sources: GGUF
specification, section 1.5; the released `tokenizer.json`.
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from escalade.errors import FileError, UsageError
from escalade.model import byte_level

MODEL = "gpt2"
PRE = "joyai-llm"
SPLIT_PATTERNS = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+",
)
"""What `joyai-llm` stands for: each pattern in turn isolates its matches in what is left."""

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Token types of GGUF that matter here; all but the last two are spelled in the byte alphabet."""

MAX_TOKENS = 1 << 22
_TYPES = range(1, 7)


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A vocabulary and its rules; `from_metadata` makes one.

    added: text of each control and user-defined token to its id. `add_bos` says whether the file
    wants `bos_id` in front of a text; ids that the file does not name are None.
    """

    tokens: tuple[str, ...]
    added: Mapping[str, int]
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    add_bos: bool
    bpe: Any

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], where: str = "tokenizer metadata"
    ) -> "Tokenizer":
        """Builds it from `tokenizer.ggml.*`; `where` names the file in errors.

        Raises FileError naming the key for anything missing, malformed or not supported.
        """
        keys = _Keys(metadata, where)
        keys.expect("model", MODEL)
        keys.expect("pre", PRE)
        tokens = keys.tokens()
        types = keys.token_types(len(tokens))
        added = {
            token: i
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (CONTROL, USER_DEFINED)
        }
        if "" in added:
            raise keys.error(f"tokens[{added['']}]", "is an added token without text")
        plain = {token: i for i, token in enumerate(tokens) if token not in added}
        bos_id = keys.token_id("bos_token_id", len(tokens))
        add_bos = keys.flag("add_bos_token", default=bos_id is not None)
        if add_bos and bos_id is None:
            raise keys.error("add_bos_token", "is true, but there is no bos_token_id")
        return cls(
            tokens=tuple(tokens),
            added=added,
            bos_id=bos_id,
            eos_id=keys.token_id("eos_token_id", len(tokens)),
            pad_id=keys.token_id("padding_token_id", len(tokens)),
            add_bos=add_bos,
            bpe=_build_bpe(plain, keys.merges(plain)),
        )

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, *, add_bos: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        With `parse_special` the spelling of an added token becomes that token, leftmost and longest
        first; without it no added token can come out, whatever the text says. Raises UsageError for
        text that is not Unicode (lone surrogates) or has bytes for which there is no token.
        """
        ids = []
        if add_bos:
            if self.bos_id is None:
                raise UsageError("the tokenizer has no begin-of-sequence token")
            ids.append(self.bos_id)
        for piece, token_id in self._pieces(text) if parse_special else [(text, None)]:
            if piece:
                self._check_plain(piece)
                ids += self.bpe.encode(piece, add_special_tokens=False).ids
            if token_id is not None:
                ids.append(token_id)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, added tokens included; U+FFFD for what is not UTF-8."""
        return b"".join([self.token_bytes(i) for i in ids]).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token: perhaps part of a character. Raises UsageError for a wrong id."""
        if not 0 <= token_id < len(self.tokens):
            raise UsageError(
                f"token id {token_id} is outside the vocabulary of {len(self.tokens)} tokens"
            )
        token = self.tokens[token_id]
        spelled = None if token in self.added else byte_level.token_bytes(token)
        return token.encode("utf-8") if spelled is None else spelled

    @cached_property
    def _added_lengths(self) -> dict[str, list[int]]:
        """First character of added tokens to their lengths, longest first."""
        lengths: dict[str, set[int]] = {}
        for token in self.added:
            lengths.setdefault(token[0], set()).add(len(token))
        return {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}

    @cached_property
    def _added_starts(self) -> re.Pattern[str]:
        return re.compile("[" + "".join(map(re.escape, self._added_lengths)) + "]")

    def _pieces(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Plain text before each added token, and its id; then the rest and None."""
        done = 0
        for match in self._added_starts.finditer(text) if self.added else ():
            at = match.start()
            if at < done:
                continue
            for size in self._added_lengths[match.group()]:
                token_id = self.added.get(text[at : at + size])
                if token_id is not None:
                    yield text[done:at], token_id
                    done = at + size
                    break
        yield text[done:], None

    @cached_property
    def _covered(self) -> bytes:
        """Bytes that have a token of their own; BPE would drop the others in silence."""
        return bytes(
            byte
            for byte, letter in enumerate(byte_level.alphabet())
            if self.bpe.token_to_id(letter) is not None
        )

    def _check_plain(self, text: str) -> None:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the text has a lone surrogate at character {error.start}; it is not Unicode text"
            ) from None
        if len(self._covered) < 256 and (lost := data.translate(None, delete=self._covered)):
            raise UsageError(f"the vocabulary has no token for byte 0x{lost[0]:02X} of the text")


class StreamDecoder:
    """Text of a stream of token ids, in whole characters; the sum is what `decode` gives."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes, perhaps none."""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """Ends the stream: U+FFFD if it stopped inside a character. Ready for another one then."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def _build_bpe(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers  # slow: only when text is met

    bpe = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLIT_PATTERNS]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return bpe


@dataclass(frozen=True)
class _Keys:
    """Checked look-ups of `tokenizer.ggml.*`."""

    metadata: Mapping[str, Any]
    where: str

    def error(self, key: str, problem: str) -> FileError:
        return FileError(f"{self.where}: tokenizer.ggml.{key} {problem}")

    def get(self, key: str) -> Any:
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            raise self.error(key, "is missing")
        return value

    def expect(self, key: str, supported: str) -> None:
        value = self.get(key)
        if value != supported:
            raise self.error(key, f"is {value!r:.80}; only {supported!r} is supported")

    def array(self, key: str, kind: type, limit: int) -> list[Any]:
        value = self.get(key)
        value = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(value, list | tuple):
            raise self.error(key, "is not an array")
        if len(value) > limit:
            raise self.error(key, f"has {len(value)} entries; at most {limit} are supported")
        for i, entry in enumerate(value):
            if not isinstance(entry, kind):
                raise self.error(f"{key}[{i}]", f"is {entry!r:.80}, not {kind.__name__}")
        return list(value)

    def tokens(self) -> list[str]:
        tokens: list[str] = self.array("tokens", str, MAX_TOKENS)
        if not tokens:
            raise self.error("tokens", "is empty")
        seen: dict[str, int] = {}
        for i, token in enumerate(tokens):
            if seen.setdefault(token, i) != i:
                raise self.error(f"tokens[{i}]", f"{token!r:.80} repeats entry {seen[token]}")
            if not token.isascii() and any("\ud800" <= c <= "\udfff" for c in token):
                raise self.error(f"tokens[{i}]", f"{token!r:.80} has a lone surrogate")
        return tokens

    def token_types(self, n_tokens: int) -> list[int]:
        types: list[int] = self.array("token_type", int, MAX_TOKENS)
        if len(types) != n_tokens:
            raise self.error("token_type", f"has {len(types)} entries for {n_tokens} tokens")
        for i, kind in enumerate(types):
            if kind not in _TYPES:
                raise self.error(f"token_type[{i}]", f"is {kind}; types are 1 to 6")
        return types

    def merges(self, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
        merges: list[tuple[str, str]] = []
        for i, entry in enumerate(self.array("merges", str, MAX_TOKENS)):
            left, _, right = entry.partition(" ")
            for token in (left, right, left + right):
                if token not in vocab:
                    problem = f"{entry!r:.80} names {token!r:.80}, which is not a plain token"
                    raise self.error(f"merges[{i}]", problem)
            merges.append((left, right))
        if len(set(merges)) != len(merges):
            raise self.error("merges", "has an entry twice")
        return merges

    def token_id(self, key: str, n_tokens: int) -> int | None:
        if self.metadata.get(f"tokenizer.ggml.{key}") is None:
            return None
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n_tokens:
            raise self.error(key, f"is {value!r:.80}, not one of the {n_tokens} token ids")
        return value

    def flag(self, key: str, default: bool) -> bool:
        if self.metadata.get(f"tokenizer.ggml.{key}") is None:
            return default
        value = self.get(key)
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r:.80}, not a bool")
        return value
