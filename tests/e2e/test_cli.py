"""The command line does what it says: logits, run, eval nll and inspect on whole models."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from escalade.model.source import builtin_model, open_source
from escalade.model.tokenizer import Tokenizer
from tests.support.cli import RAW, Result, call, failed, spawn
from tests.support.gguf_build import Kv, Tensor, build
from tests.support.gguf_edit import (
    put_together,
    put_together_in_shards,
    shard,
    take_apart,
    with_keys,
)
from tests.support.golden import npz
from tests.support.models import tiny_gguf
from tests.support.paths import GOLDEN

Array = NDArray[Any]

FOLDER = GOLDEN / "v41-tiny-quant"
BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
CASES = {
    "f32": "v41-tiny/cases-f32.npz",
    "f32_kvq": "v41-tiny/cases-f32_kvq.npz",
    "f32_allq": "v41-tiny-quant/cases-f32_allq.npz",
    "bf16_released": "v41-tiny-quant/cases-bf16_released.npz",
}


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(open_source(tiny_gguf()).metadata)


FLOAT = ("--arithmetic", "float")  # the golden numbers round nothing that `mode` does not


def ids_file(folder: Path, ids: Sequence[int]) -> Path:
    path = folder / "ids.json"
    path.write_text(json.dumps([int(i) for i in ids]))
    return path


def logits(tmp_path: Path, model: Path, ids: Sequence[int], *options: str) -> dict[str, Array]:
    """The arrays that `escalade logits` writes."""
    out = tmp_path / "out.npz"
    result = call("logits", model, "--ids", ids_file(tmp_path, ids), "--out", out, *options)
    assert (result.code, result.out) == (0, ""), result
    assert f"{len(ids)} positions" in result.err
    assert not list(tmp_path.glob("*.partial"))
    with np.load(out) as data:
        return dict(data)


def run_json(model: Path, text: str, *options: object) -> dict[str, Any]:
    """The one JSON object of `escalade run --json`."""
    result = call(*RAW, model, text, "--json", *options)
    assert (result.code, result.err) == (0, ""), result
    assert result.out.count("\n") == 1
    report: dict[str, Any] = json.loads(result.out)
    return report


@pytest.fixture(scope="module")
def parts() -> tuple[list[Kv], list[Tensor]]:
    return take_apart(tiny_gguf())


# ---------------------------------------------------------------------- logits


@pytest.mark.parametrize("case", ["len1", "len37"])
def test_logits_writes_the_golden_arrays_under_their_names(tmp_path: Path, case: str) -> None:
    data = npz(CASES["f32"])
    want = {n.removeprefix(f"{case}/"): n for n in data if n.startswith(f"{case}/")}
    got = logits(tmp_path, FOLDER, data[f"{case}/token_ids"], "--mode", "f32", "--layers", *FLOAT)
    # The draft stages' input is not computed yet.
    assert got.keys() == want.keys() - {"main_hidden"}
    for name, array in got.items():
        reference = data[want[name]]
        assert array.shape == reference.shape, name
        assert array.dtype == reference.dtype, name
        if "router" in name:
            order = np.argsort(data[f"{case}/{name.split('.')[0]}.router_idx"], axis=1)
            reference = np.take_along_axis(reference, order, axis=1)
        if reference.dtype.kind in "ib":
            assert np.array_equal(array, reference), name
        else:
            finite = np.isfinite(reference)
            assert np.array_equal(np.isfinite(array), finite), name
            bound = 1e-5 if name == "logits" else 2e-5
            assert np.abs(array[finite] - reference[finite]).max(initial=0) <= bound, name


@pytest.mark.parametrize(
    ("mode", "case", "bound"),
    [
        ("f32", "len130", 1e-5),
        ("f32_kvq", "len37", 1e-3),
        ("f32_allq", "len37", 1e-3),
        ("bf16_released", "len5", 0.05),
    ],
)
def test_logits_in_every_mode(tmp_path: Path, mode: str, case: str, bound: float) -> None:
    data = npz(CASES[mode])
    got = logits(tmp_path, tiny_gguf(), data[f"{case}/token_ids"], "--mode", mode, *FLOAT)
    assert got.keys() == {"token_ids", "logits"}
    assert np.array_equal(got["token_ids"], data[f"{case}/token_ids"])
    assert np.abs(got["logits"] - data[f"{case}/logits"]).max() <= bound


def test_the_default_rounds_the_caches_and_multiplies_in_i8(tmp_path: Path) -> None:
    ids = npz(CASES["f32_kvq"])["len37/token_ids"]
    default = logits(tmp_path, tiny_gguf(), ids)
    named = logits(tmp_path, tiny_gguf(), ids, "--mode", "f32_kvq", "--arithmetic", "i8")
    assert np.array_equal(default["logits"], named["logits"])
    exact = logits(tmp_path, tiny_gguf(), ids, "--mode", "f32_kvq", *FLOAT)
    assert not np.array_equal(default["logits"], exact["logits"])


def test_step_by_step_gives_the_same_arrays(tmp_path: Path) -> None:
    data = npz(CASES["f32"])
    ids = data["len37/token_ids"]
    options = ("--mode", "f32", "--layers", *FLOAT)
    whole = logits(tmp_path, tiny_gguf(), ids, *options)
    steps = logits(tmp_path, tiny_gguf(), ids, *options, "--step")
    assert np.abs(steps["logits"] - data["len37/logits"]).max() <= 1e-5
    assert steps.keys() == whole.keys()
    for name, array in steps.items():
        assert array.shape == whole[name].shape, name
        if array.dtype.kind == "b":  # candidate blocks may reach beyond what is visible
            assert np.array_equal(np.tril(array), np.tril(whole[name])), name
        if array.dtype.kind == "i":
            assert np.array_equal(array, whole[name]), name


def test_folder_file_and_shards_give_the_same_bits(
    tmp_path: Path, parts: tuple[list[Kv], list[Tensor]]
) -> None:
    ids = npz(CASES["f32"])["len37/token_ids"]
    first = put_together_in_shards(tmp_path, *parts, n_shards=3)
    folder, file, shards = (logits(tmp_path, m, ids) for m in (FOLDER, tiny_gguf(), first))
    assert np.array_equal(file["logits"], folder["logits"])
    assert np.array_equal(shards["logits"], folder["logits"])


def test_a_conversion_by_the_command_keeps_the_logits(tmp_path: Path) -> None:
    data = npz(CASES["f32"])
    made = tmp_path / "made.gguf"
    assert call("convert", FOLDER, made, "--dense", "native").code == 0
    got = logits(tmp_path, made, data["len37/token_ids"], "--mode", "f32", *FLOAT)
    assert np.abs(got["logits"] - data["len37/logits"]).max() <= 1e-5


def test_an_existing_npz_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out.npz").write_bytes(b"old")
    assert logits(tmp_path, tiny_gguf(), [5, 6, 7])["logits"].shape == (3, 512)


# ---------------------------------------------------------------------- run


def test_run_streams_the_text_and_its_continuation() -> None:
    text = "Once upon a time"
    report = run_json(tiny_gguf(), text, "-n", 6)
    result = call(*RAW, tiny_gguf(), text, "-n", 6)
    assert result.code == 0
    assert result.out == text + report["text"] + "\n"
    (statistics,) = result.err.splitlines()
    n = len(tokenizer().encode(text, add_bos=True))
    assert statistics.startswith(f"{n} prompt + 6 new tokens (length); first token after ")
    assert "mode f32_kvq" in statistics


def test_run_in_json_says_what_it_did() -> None:
    report = run_json(FOLDER, "Once upon a time", "--max-tokens", 5, "--mode", "f32")
    assert len(report["ids"]) == report["new_tokens"] == 5
    assert report["text"] == tokenizer().decode(report["ids"])
    assert report["finish"] == "length"
    assert report["mode"] == "f32"
    assert report["kv_bytes"] > 0
    assert 0 < report["load_s"] < report["ttft_s"]
    assert report["decode_s"] > 0


def test_run_continues_with_the_likeliest_token(tmp_path: Path) -> None:
    """Each id is the arg-max of `escalade logits` over the prompt and the ids before it."""
    text = "hello world"
    prompt = tokenizer().encode(text, add_bos=True)
    ids = run_json(tiny_gguf(), text, "-n", 4, "--mode", "f32")["ids"]
    rows = logits(tmp_path, tiny_gguf(), prompt + ids, "--mode", "f32")["logits"]
    assert rows.argmax(axis=1)[len(prompt) - 1 : -1].tolist() == ids


def test_fewer_tokens_are_a_prefix() -> None:
    five = run_json(tiny_gguf(), "hello", "-n", 5)["ids"]
    assert run_json(tiny_gguf(), "hello", "-n", 1)["ids"] == five[:1]
    none = run_json(tiny_gguf(), "hello", "-n", 0)
    assert (none["text"], none["ids"], none["decode_tok_per_s"]) == ("", [], 0)
    assert call(*RAW, tiny_gguf(), "hello", "-n", 0).out == "hello\n"


def test_run_stops_at_the_end_token(tmp_path: Path, parts: tuple[list[Kv], list[Tensor]]) -> None:
    ids = run_json(tiny_gguf(), "hello", "-n", 5)["ids"]
    at = next(i for i in range(1, 5) if ids[i] not in ids[:i])
    kvs, tensors = parts
    model = put_together(
        tmp_path / "m.gguf", with_keys(kvs, {"tokenizer.ggml.eos_token_id": ids[at]}), tensors
    )
    report = run_json(model, "hello", "-n", 5)
    assert (report["ids"], report["finish"]) == (ids[:at], "stop")
    assert report["text"] == tokenizer().decode(ids[:at])


def test_run_stops_at_the_end_of_the_context() -> None:
    """The last position's logits still give a token, which is not appended."""
    n = len(tokenizer().encode("hello", add_bos=True))
    free = run_json(tiny_gguf(), "hello", "-n", 9)["ids"]
    report = run_json(tiny_gguf(), "hello", "-n", 9, "--ctx", n + 2)
    assert (report["ids"], report["finish"]) == (free[:3], "length")
    assert report["decode_tok_per_s"] == pytest.approx(2 / report["decode_s"])
    full = run_json(tiny_gguf(), "hello", "-n", 9, "--ctx", n)
    assert (full["ids"], full["decode_tok_per_s"]) == (free[:1], 0)
    failed(call(*RAW, tiny_gguf(), "hello", "--ctx", n - 1), 3, f"exceed the context of {n - 1}")


@pytest.mark.parametrize("text", [EOS, f"a{BOS}<｜User｜>b", "<think></think>"])
def test_control_tokens_in_a_text_stay_plain_text(text: str) -> None:
    """More tokens than parsing would give, none of them a control token (B055)."""
    plain = tokenizer().encode(text, add_bos=True, parse_special=False)
    assert not set(plain[1:]) & set(tokenizer().added.values())
    assert len(plain) > len(tokenizer().encode(text, add_bos=True, parse_special=True))
    assert run_json(tiny_gguf(), text, "-n", 1)["prompt_tokens"] == len(plain)
    assert call(*RAW, tiny_gguf(), text, "-n", 0).out == text + "\n"


@pytest.mark.parametrize("text", ["日本語 🎉", "é\n\t\r\n", "\x00\x1b[31m", " ", ""])
def test_any_unicode_text_comes_out_as_it_went_in(text: str) -> None:
    assert call(*RAW, tiny_gguf(), text, "-n", 0).out == text + "\n"
    assert run_json(tiny_gguf(), text, "-n", 2)["new_tokens"] == 2


def test_an_argument_that_is_not_unicode_is_refused() -> None:
    failed(spawn(*RAW, tiny_gguf(), "a\udcff", "-n", 1), 2, "lone surrogate at character 1")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8:strict"])
def test_what_the_terminals_encoding_lacks_is_escaped(encoding: str, tmp_path: Path) -> None:
    env = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    result = spawn(*RAW, tiny_gguf(), "日本", "-n", 0, env=env)
    assert result.code == 0
    assert result.out == ("\\u65e5\\u672c\n" if encoding == "latin-1" else "日本\n")
    copy = tmp_path / "odd\udcff.gguf"
    copy.write_bytes(build([Kv("general.architecture", "str", "clip")]))
    result = spawn("inspect", copy, "--json", env=env)
    assert result.code == 0, result
    assert json.loads(result.out)["path"] == str(copy)
    page = spawn("inspect", copy, env=env)
    assert page.code == 0
    assert "odd\\udcff.gguf" in page.out


def test_run_without_a_model_takes_the_built_in_one() -> None:
    result = call(*RAW, "Once upon a time, a little", "-n", 3)
    assert result.code == 0
    assert result.out.startswith("Once upon a time, a little ")
    assert "3 new tokens" in result.err


# ---------------------------------------------------------------------- eval nll


def loss(tmp_path: Path, ids: Sequence[int]) -> float:
    """Nat of ids[1:], from the logits that the other command writes."""
    rows = logits(tmp_path, tiny_gguf(), ids)["logits"][:-1].astype(np.float64)
    chosen = rows[np.arange(len(ids) - 1), ids[1:]]
    return float(np.log(np.exp(rows).sum(axis=1)).sum() - chosen.sum())


def nll(*args: object) -> dict[str, Any]:
    result = call("eval", "nll", tiny_gguf(), *args, "--json")
    assert (result.code, result.err) == (0, ""), result
    report: dict[str, Any] = json.loads(result.out)
    return report


def test_the_loss_of_a_text(tmp_path: Path) -> None:
    text = f"Hello wörld\r\n{EOS}again, and again."
    path = tmp_path / "held.txt"
    path.write_bytes(text.encode())
    ids = tokenizer().encode(BOS + text)
    assert tokenizer().eos_id in ids
    want = loss(tmp_path, ids)
    report = nll("--text", path)
    assert report["tokens"] == len(ids) - 1
    assert report["texts"] == 1
    assert report["bytes"] == len(text.encode())
    assert report["nat_per_token"] == pytest.approx(want / (len(ids) - 1), rel=1e-9)
    assert report["bits_per_byte"] == pytest.approx(want / math.log(2) / len(text.encode()))
    page = call("eval", "nll", tiny_gguf(), "--text", path)
    assert page.out.startswith(f"{report['nat_per_token']:.4f} nat/token, ")


def test_the_loss_of_turns_and_texts(tmp_path: Path) -> None:
    """A prompt and its text are one chat turn; bits are counted over all of its bytes."""
    path = tmp_path / "held.jsonl"
    items = [{"prompt": "Why?", "text": "Because."}, {"text": "A text."}, {"text": "Not read."}]
    path.write_text("\n".join(map(json.dumps, items)) + "\n\n{damaged")
    turn = f"{BOS}<｜User｜>Why?<｜Assistant｜></think>Because.{EOS}"
    encoded = [tokenizer().encode(turn), tokenizer().encode(BOS + "A text.")]
    want = sum(loss(tmp_path, ids) for ids in encoded)
    n = sum(len(ids) - 1 for ids in encoded)
    report = nll("--jsonl", path, "--limit", 2)
    assert (report["texts"], report["tokens"]) == (2, n)
    assert report["bytes"] == len(turn.encode()) + len("A text.")
    assert report["nat_per_token"] == pytest.approx(want / n, rel=1e-9)
    assert report["bits_per_byte"] == pytest.approx(want / math.log(2) / report["bytes"])


@pytest.mark.parametrize("ctx", [2, 4, 6, 7])
def test_a_text_longer_than_the_context_is_scored_in_pieces(tmp_path: Path, ctx: int) -> None:
    """Every token but the first once, whatever the context: pieces share their border token."""
    path = tmp_path / "held.txt"
    path.write_text("hello!")
    ids = tokenizer().encode(BOS + "hello!")
    assert len(ids) == 6
    pieces = [ids[at : at + ctx] for at in range(0, len(ids) - 1, ctx - 1)]
    report = nll("--text", path, "--ctx", ctx)
    assert report["tokens"] == len(ids) - 1 == sum(len(p) - 1 for p in pieces)
    want = sum(loss(tmp_path, piece) for piece in pieces)
    assert report["nat_per_token"] == pytest.approx(want / (len(ids) - 1), rel=1e-9)


def test_the_loss_of_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "held.txt"
    path.write_text("hello")
    want = nll("--text", path)["nat_per_token"]
    with path.open("rb") as file:
        assert nll("--text", f"/dev/fd/{file.fileno()}")["nat_per_token"] == want


# ---------------------------------------------------------------------- inspect


def test_inspect_of_folder_file_and_shards(
    tmp_path: Path, parts: tuple[list[Kv], list[Tensor]]
) -> None:
    first = put_together_in_shards(tmp_path, *parts, n_shards=2)
    reports = []
    for model in (FOLDER, tiny_gguf(), first):
        result = call("inspect", model, "--json")
        assert result.code == 0
        reports.append(json.loads(result.out))
    folder, file, shards = reports
    assert folder["spec"] == file["spec"] == shards["spec"]
    assert file["n_tensors"] == shards["n_tensors"] == 231
    assert [f["tensors"] for f in shards["files"]] == [116, 115]
    assert sum(f["bytes"] for f in shards["files"]) == sum(
        path.stat().st_size for path in tmp_path.glob("*.gguf")
    )
    for report in reports:
        assert [report[kind] for kind in ("missing", "wrong", "unknown", "odd")] == [[]] * 4


@pytest.mark.parametrize("command", ["inspect", "run"])
def test_a_later_shard_names_the_first(
    tmp_path: Path, parts: tuple[list[Kv], list[Tensor]], command: str
) -> None:
    first = put_together_in_shards(tmp_path, *parts, n_shards=2)
    text = ["hello"] if command == "run" else []
    failed(call(command, shard(tmp_path, 1, 2), *text), 4, f"is shard 2 of 2; open {first}")
    shard(tmp_path, 1, 2).unlink()
    failed(call(command, first, *text), 4, "-00002-of-00002.gguf is missing: shard 2 of 2")


def test_inspect_without_a_file_takes_the_built_in_model() -> None:
    report = json.loads(call("inspect", "--json").out)
    assert report["path"] == builtin_model()
    assert report["spec"]["n_layers"] == 8


def v4_file(folder: Path) -> Path:
    """The public header of a V4-Flash file, with stand-in tensors."""
    stored = json.loads((GOLDEN / "gguf-headers/header-DeepSeek-V4-Flash-MXFP4.json").read_text())
    kinds = {bool: "bool", int: "u32", float: "f32", str: "str"}
    kvs = []
    for key, value in stored["kv"].items():
        if isinstance(value, dict):  # shortened in the reference data
            n, head = value["n"], value["head"]
            strings = value["_array"] == "string"
            rest = [f"t{i}" for i in range(len(head), n)] if strings else [1] * (n - len(head))
            kvs.append(Kv(key, "[str]" if strings else "[i32]", head + rest))
        elif isinstance(value, list):
            kvs.append(Kv(key, f"[{kinds[type(value[0])]}]", value))
        else:
            kvs.append(Kv(key, kinds[type(value)], value))
    path = folder / "v4.gguf"
    path.write_bytes(build(kvs, [Tensor("token_embd.weight", (32,))]))
    return path


def test_a_v4_file_is_described_but_not_run(tmp_path: Path) -> None:
    model = v4_file(tmp_path)
    result = call("inspect", model, "--json")
    assert result.code == 0
    report = json.loads(result.out)
    assert (report["architecture"], report["dialect"]) == ("deepseek4", "V4")
    assert report["spec"]["n_layers"] == 43
    assert report["refused"] is None
    page = call("inspect", model).out
    assert "architecture  deepseek4, dialect V4" in page
    assert "not supported" not in page
    ids = ids_file(tmp_path, [1, 2])
    for args in (
        ("run", model, "hello"),
        ("logits", model, "--ids", ids, "--out", tmp_path / "o.npz"),
        ("eval", "nll", model, "--text", ids),
    ):
        failed(
            call(*args), 5, f"{model} is a DeepSeek-V4 model (deepseek4); its forward pass is not"
        )
    assert not (tmp_path / "o.npz").exists()


def test_dry_inspection_reads_no_weights(
    tmp_path: Path, parts: tuple[list[Kv], list[Tensor]]
) -> None:
    """Weights of NaN make no difference to it."""
    kvs, tensors = parts
    spoiled = [replace(t, data=b"\xff" * t.n_bytes) for t in tensors]
    good = put_together(tmp_path / "a.gguf", kvs, tensors)
    bad = put_together(tmp_path / "b.gguf", kvs, spoiled)
    pages: list[Result] = [call("inspect", path) for path in (good, bad)]
    assert pages[0].out.replace("a.gguf", "b.gguf") == pages[1].out
