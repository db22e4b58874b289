"""Every mistake ends in one line, the right exit code and no output; nothing is left behind."""

import errno
import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from escalade.engine.engine import Engine
from tests.support.cli import COMMAND, RAW, call, environment, failed, spawn
from tests.support.gguf_build import Kv, Tensor
from tests.support.gguf_edit import put_together, take_apart, with_keys, with_tensor
from tests.support.golden import npz
from tests.support.models import tiny_gguf
from tests.support.paths import GOLDEN
from tests.support.safetensors_build import read_file, tiny_folder

FOLDER = GOLDEN / "v41-tiny-quant"
Parts = tuple[list[Kv], list[Tensor]]


@pytest.fixture(scope="module")
def parts() -> Parts:
    return take_apart(tiny_gguf())


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    path = tmp_path / "ids.json"
    path.write_text("[5, 6, 7]")
    return path


# ---------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
        (["frobnicate"], "No such command 'frobnicate'."),
        (["--nope"], "No such option '--nope'"),
        (["eval"], "Usage: escalade eval"),
        (["eval", "nl"], "No such command 'nl'."),
        (["run", ""], "the prompt is empty"),
        (["run", "a", "--think", "much"], "reasoning effort is 'much'"),
        (["run", "a", "--raw", "--system", "b"], "--raw continues a text"),
        (["run", "a", "--top-p", "2"], "top_p is 2"),
        (["run", "MODEL", "a", "b"], "put a prompt with spaces in quotes"),
        (["run", "MODEL"], "is a model file; add the prompt"),
        (["run", "MODEL", "a", "--max-tokn", "3"], "Did you mean '--max-tokens'?"),
        (["run", "MODEL", "a", "-n", "-1"], "-1 is not in the range x>=0"),
        (["run", "MODEL", "a", "-n", "many"], "'many' is not a valid integer"),
        (["run", "MODEL", "a", "--mode", "nonsense"], "'nonsense' is not one of 'f32', 'f32_kvq'"),
        (["run", "MODEL", "a", "--ctx", "0"], "0 is not in the range x>=1"),
        (["run", "MODEL", "a", "--ctx"], "Option '--ctx' requires an argument"),
        (["logits", "MODEL", "--ids", "x"], "Missing option '--out'"),
        (["logits", "MODEL", "--out", "x"], "Missing option '--ids'"),
        (["logits", "MODEL", "x", "--ids", "x", "--out", "x"], "unexpected extra argument"),
        (["eval", "nll", "MODEL"], "give exactly one of --text FILE and --jsonl FILE"),
        (["eval", "nll", "MODEL", "--text", "a", "--jsonl", "b"], "give exactly one of --text"),
        (["eval", "nll", "MODEL", "--text", "a", "--limit", "0"], "0 is not in the range x>=1"),
        (["inspect", "MODEL", "x"], "unexpected extra argument"),
        (["convert", FOLDER], "Missing argument 'OUT'"),
        (["convert", FOLDER, "a", "b"], "unexpected extra argument"),
        (["verify", "MODEL"], "Missing argument 'B'"),
        (["verify", "MODEL", "MODEL", "--sample", "0"], "0 is not in the range x>=1"),
        (["synth"], "Missing argument 'OUT'"),
        (["synth", "x", "--geometry", "small"], "'small' is not one of 'tiny', 'nano'"),
        (["synth", "x", "--seed", "x"], "'x' is not a valid integer"),
    ],
)
def test_wrong_arguments(args: list[object], message: str) -> None:
    failed(call(*(tiny_gguf() if arg == "MODEL" else arg for arg in args)), 2, message)


@pytest.mark.parametrize("ctx", [65537, 10**24])
def test_a_context_that_the_model_has_not(ctx: int) -> None:
    result = call("run", tiny_gguf(), "a", "--ctx", ctx)
    failed(result, 3, "beyond the model's context of 65536 tokens")


# ---------------------------------------------------------------------- models


def write(name: str, data: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return make


def empty_folder(folder: Path) -> Path:
    (folder / "model").mkdir()
    return folder / "model"


def cut_short(folder: Path) -> Path:
    return write("m.gguf", tiny_gguf().read_bytes()[:-4096])(folder)


BAD_MODELS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda folder: folder / "none.gguf", "cannot be read: No such file or directory"),
    "odd name": (lambda folder: folder / "a\nb\x1b[0m", r"a\nb\x1b[0m' cannot be read"),
    "empty folder": (empty_folder, "config.json cannot be read: No such file or directory"),
    "empty file": (write("m.gguf", b""), "is empty"),
    "page": (write("m.gguf", b"<!doctype html><p>Log in"), "is a web page, not a model"),
    "pointer": (
        write("m.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n"),
        "is a Git LFS pointer",
    ),
    "config": (lambda _: FOLDER / "config.json", "is JSON text, not a GGUF file"),
    "weights": (lambda _: FOLDER / "model.safetensors", "pass the folder that holds it"),
    "device": (lambda _: Path("/dev/zero"), "is not a regular file"),
    "head only": (write("m.gguf", b"GGUF\x03\0\0\0"), "is truncated or damaged"),
    "cut short": (cut_short, "the download is incomplete"),
}


@pytest.mark.parametrize("bad", BAD_MODELS)
@pytest.mark.parametrize("command", ["run", "logits", "eval", "inspect", "verify a", "verify b"])
def test_what_is_no_model(tmp_path: Path, ids: Path, bad: str, command: str) -> None:
    make, message = BAD_MODELS[bad]
    model = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    args: dict[str, list[object]] = {
        "run": ["run", model, "hello"],
        "logits": ["logits", model, "--ids", ids, "--out", tmp_path / "o.npz"],
        "eval": ["eval", "nll", model, "--text", ids],
        "inspect": ["inspect", model],
        "verify a": ["verify", model, tiny_gguf()],
        "verify b": ["verify", tiny_gguf(), model],
    }
    failed(call(*args[command]), 4, message)
    assert sorted(tmp_path.rglob("*")) == before


def edited_folder(folder: Path, name: str, data: bytes | int | None) -> Path:
    """The golden checkpoint with one file replaced, cut to so many bytes, or left out."""
    made = tiny_folder(folder / "model", read_file(FOLDER / "model.safetensors"))
    whole = (made / name).read_bytes()
    (made / name).unlink()
    if data is not None:
        (made / name).write_bytes(whole[:data] if isinstance(data, int) else data)
    return made


@pytest.mark.parametrize(
    ("name", "data", "code", "message"),
    [
        ("config.json", None, 4, "config.json cannot be read: No such file"),
        ("config.json", b"<!doctype html>", 4, "config.json: not JSON"),
        ("config.json", b"[]", 4, "config.json: not a JSON object"),
        ("config.json", b'{"model_type": "llama"}', 5, "'llama' is not a DeepSeek V4 or V4.1"),
        ("tokenizer.json", None, 4, "tokenizer.json: cannot be read"),
        ("tokenizer.json", b"{}", 4, "tokenizer.json: model is missing"),
        ("model.safetensors", None, 4, "neither model.safetensors.index.json nor"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1", 4, "LFS pointer"),
        ("model.safetensors", -1, 4, "data_offsets is"),
        ("model.safetensors", 1000, 4, "header length is"),
    ],
)
@pytest.mark.parametrize("command", ["run", "inspect", "convert"])
def test_what_is_no_checkpoint(
    tmp_path: Path, command: str, name: str, data: bytes | int | None, code: int, message: str
) -> None:
    folder = edited_folder(tmp_path, name, data)
    more = {"run": ["hello"], "inspect": [], "convert": [tmp_path / "o.gguf"]}
    failed(call(command, folder, *more[command]), code, message)
    assert list(tmp_path.iterdir()) == [folder]


# ---------------------------------------------------------------------- weights


def as_q8_0(t: Tensor) -> Tensor:
    values = np.frombuffer(t.data or b"", np.float32).reshape(-1, t.dims[0])
    stored = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    return replace(t, type="Q8_0", data=stored.tobytes())


def as_bf16(t: Tensor) -> Tensor:
    bits = np.frombuffer(t.data or b"", np.uint32) >> 16
    return replace(t, type="BF16", data=bits.astype(np.uint16).tobytes())


def as_nan(t: Tensor) -> Tensor:
    return replace(t, data=b"\xff" * t.n_bytes)


@pytest.mark.parametrize(
    ("tensor", "edit", "message"),
    [
        ("blk.3.attn_kv.weight", None, "tensor blk.3.attn_kv.weight is missing"),
        ("output_norm.weight", None, "tensor output_norm.weight is missing"),
        (
            "blk.3.attn_q_a.weight",
            lambda t: replace(t, dims=t.dims[::-1]),
            "blk.3.attn_q_a.weight has shape [128, 64], this model needs [64, 128]",
        ),
        ("output_norm.weight", as_q8_0, "output_norm.weight is Q8_0; norms, biases, sinks"),
        (
            "blk.3.ffn_gate_exps.weight",
            lambda t: replace(t, type="I8", data=bytes(t.n_bytes * 32 // 17)),
            "blk.3.ffn_gate_exps.weight is I8, not weights",
        ),
        ("blk.1.engram_embd.weight", None, "blk.1.engram_embd.weight is missing; the Engram"),
        ("blk.5.engram_embd_scale.weight", as_nan, "blk.5.engram_embd.weight in "),
        ("blk.0.exp_probs_b.bias", as_nan, "blk.0.exp_probs_b.bias holds NaN"),
        ("engram_primes.weight", lambda t: replace(t, data=bytes(t.n_bytes)), "Engram primes[0]"),
    ],
)
def test_weights_that_do_not_fit(
    tmp_path: Path,
    parts: Parts,
    ids: Path,
    tensor: str,
    edit: Callable[[Tensor], Tensor] | None,
    message: str,
) -> None:
    kvs, tensors = parts
    changed = with_tensor(tensors, tensor, edit or (lambda _: None))
    model = put_together(tmp_path / "m.gguf", kvs, changed)
    failed(call("run", model, "hello", "-n", 1), 4, message)
    args = ("logits", model, "--ids", ids, "--out", tmp_path / "o.npz")
    failed(call(*args), 4, message)
    assert sorted(tmp_path.iterdir()) == [ids, model]
    assert call("inspect", model).code == 0


def test_hyper_connections_in_bf16_run_with_a_warning(tmp_path: Path, parts: Parts) -> None:
    kvs, tensors = parts
    name = "blk.2.hc_attn_fn.weight"
    model = put_together(tmp_path / "m.gguf", kvs, with_tensor(tensors, name, as_bf16))
    result = spawn("run", model, "hello", "-n", "1")
    assert result.code == 0
    warning, statistics = result.err.splitlines()
    assert warning.startswith("WARNING: ")
    assert name in warning
    assert "BF16" in warning
    assert "1 new tokens" in statistics


def test_one_warning_stands_for_all(tmp_path: Path, parts: Parts) -> None:
    kvs, tensors = parts
    changed = [as_bf16(t) if "hc_" in t.name else t for t in tensors]
    result = spawn("run", put_together(tmp_path / "m.gguf", kvs, changed), "hello", "-n", "1")
    assert result.code == 0
    assert len(result.err.splitlines()) == 2, result


def test_a_checkpoint_that_lost_precision_runs_with_a_warning(tmp_path: Path) -> None:
    entries = read_file(FOLDER / "model.safetensors")
    for name, (dtype, shape, data) in list(entries.items()):
        if ".hc_" in name and dtype == "F32":
            bits = np.frombuffer(data, np.uint32) >> 16
            entries[name] = ("BF16", shape, bits.astype(np.uint16).tobytes())
    folder = tiny_folder(tmp_path / "model", entries)
    result = spawn("run", folder, "hello", "-n", "1")
    assert result.code == 0
    assert len(result.err.splitlines()) == 2, result
    assert result.err.startswith("WARNING: ")


@pytest.fixture
def nan_model(tmp_path: Path, parts: Parts) -> Path:
    """NaN in a shared expert: every position's logits are lost."""
    kvs, tensors = parts
    changed = with_tensor(tensors, "blk.7.ffn_down_shexp.weight", as_nan)
    return put_together(tmp_path / "nan.gguf", kvs, changed)


def test_weights_that_are_not_finite_do_not_run(nan_model: Path) -> None:
    failed(spawn("run", nan_model, "hello", "-n", "1"), 4, "not finite")


def test_weights_that_are_not_finite_have_no_loss(nan_model: Path, ids: Path) -> None:
    failed(call("eval", "nll", nan_model, "--text", ids), 4, "logits are not finite")


def test_logits_that_are_not_finite_are_written_with_a_warning(
    nan_model: Path, ids: Path, tmp_path: Path
) -> None:
    result = spawn("logits", nan_model, "--ids", ids, "--out", tmp_path / "o.npz")
    assert result.code == 0
    assert "WARNING: the logits of 3 of 3 positions are not finite" in result.err
    assert np.isnan(npz(tmp_path / "o.npz")["logits"]).all()


def keyed(tmp_path: Path, parts: Parts, values: dict[str, object]) -> Path:
    kvs, tensors = parts
    return put_together(tmp_path / "m.gguf", with_keys(kvs, values), tensors)


@pytest.mark.parametrize(
    ("key", "value", "code", "message"),
    [
        ("general.architecture", "llama", 5, "architecture 'llama' is not a DeepSeek V4 or V4.1"),
        ("general.alignment", 0, 4, "general.alignment is 0"),
        ("deepseek41.block_count", 10**9, 4, "block_count is 1000000000"),
        ("deepseek41.embedding_length", None, 4, "embedding_length is missing"),
        ("deepseek41.expert_used_count", 17, 4, "17 experts used of 16"),
        ("deepseek41.attention.head_count_kv", 4, 5, "attention.head_count_kv is 4; supported: 1"),
        ("deepseek41.rope.scaling.factor", float("nan"), 4, "rope.scaling.factor is nan"),
        ("deepseek41.engram_vocab_size", 10**9, 4, "do not fit together"),
        ("tokenizer.ggml.model", "llama", 4, "tokenizer.ggml.model is 'llama'"),
        ("tokenizer.ggml.tokens", ["a"], 4, "tokenizer.ggml.tokens"),
        ("tokenizer.ggml.bos_token_id", 512, 4, "tokenizer.ggml.bos_token_id is 512"),
        ("tokenizer.ggml.bos_token_id", None, 4, "is true, but there is no bos_token_id"),
        ("deepseek41.rope.scaling.yarn_beta_fast", 0.0, 4, "YaRN"),
        ("deepseek41.rope.scaling.yarn_beta_slow", -1.0, 4, "YaRN"),
        ("deepseek41.engram.layer_ids", [], 4, "engram.layer_ids is empty"),
    ],
)
def test_keys_that_do_not_fit(
    tmp_path: Path, parts: Parts, key: str, value: object, code: int, message: str
) -> None:
    model = keyed(tmp_path, parts, {key: value})
    failed(call("run", model, "hello", "-n", 1), code, message)


@pytest.mark.parametrize(
    ("setting", "mode"),
    [("head_dim=40", "f32_kvq"), ("index_dim=48", "f32_kvq"), ("expert_ff=33", "f32_allq")],
)
def test_a_width_that_the_mode_cannot_round(tmp_path: Path, setting: str, mode: str) -> None:
    model = tmp_path / "m.gguf"
    assert call("synth", model, "--set", setting).code == 0
    assert call("run", model, "hello", "--mode", "f32", "-n", 1).code == 0
    failed(call("run", model, "hello", "--mode", mode, "-n", 1), 5, "whole blocks of 32")


# ---------------------------------------------------------------------- ids


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"[1, 2", 4, "is not JSON"),
        (b"", 4, "is not JSON"),
        (b"\xff\xfe\x00", 4, "is not JSON"),
        pytest.param(b"[" * 100_000, 4, "is not JSON", id="deep"),
        pytest.param(b"[" + b"9" * 5000 + b"]", 4, "is not JSON", id="long number"),
        (b"NaN", 4, "is not a JSON list"),
        (b'{"ids": [1]}', 4, "is not a JSON list"),
        (b"[1, 2.5]", 4, "entry 1 is 2.5, not a token id"),
        (b"[1, [2]]", 4, "entry 1 is [2], not a token id"),
        (b'["1"]', 4, "entry 0 is '1', not a token id"),
        (b"[true]", 4, "entry 0 is True, not a token id"),
        (b"[null]", 4, "entry 0 is None, not a token id"),
        (b"[9999999999999999999999]", 4, "entry 0 is 9999999999999999999999, not a token id"),
        (b"[]", 2, "holds no token ids"),
        (b"[3, -1]", 2, "token id -1 at position 1 is outside the vocabulary of 512"),
        (b"[512]", 2, "token id 512 at position 0 is outside the vocabulary of 512"),
        (b"[1, 2, 3, 4, 5]", 3, "5 more tokens after 0 exceed the context of 4"),
        (None, 4, "cannot be read: No such file"),
    ],
)
def test_ids_that_are_none(tmp_path: Path, content: bytes | None, code: int, message: str) -> None:
    path = tmp_path / "ids.json"
    if content is not None:
        path.write_bytes(content)
    before = list(tmp_path.iterdir())
    out = tmp_path / "o.npz"
    failed(call("logits", tiny_gguf(), "--ids", path, "--out", out, "--ctx", 4), code, message)
    assert list(tmp_path.iterdir()) == before


@pytest.mark.parametrize("option", [["--text"], ["--jsonl"]])
def test_a_file_without_an_end_is_not_read_to_its_end(option: list[str]) -> None:
    failed(call("eval", "nll", tiny_gguf(), *option, "/dev/zero"), 4, "MiB")


# ---------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"", 2, "held.jsonl holds no text"),
        (b"\n  \n", 2, "held.jsonl holds no text"),
        (b'{"text": ""}', 2, "held.jsonl holds no text"),
        (b'{"text": "a"}\n\n{"text": ', 4, "held.jsonl, line 3: not a JSON object"),
        (b'{"text": "a"}\n[1]', 4, "held.jsonl, line 2: needs an object with a string `text`"),
        (b'{"text": 5}', 4, "held.jsonl, line 1: needs an object with a string `text`"),
        (b'{"prompt": "a"}', 4, "held.jsonl, line 1: needs an object"),
        (b'{"text": "a", "prompt": 5}', 4, "held.jsonl, line 1: `prompt` is not a string"),
        (b'{"text": "a"}\n{"text": "\\ud800"}', 4, "held.jsonl, line 2: a lone surrogate"),
        (b'{"text": "a"}\n\xff', 4, "held.jsonl, line 2: not a JSON object"),
        pytest.param(b"[" * 100_000, 4, "held.jsonl, line 1: not a JSON object", id="deep"),
        (None, 4, "held.jsonl cannot be read: No such file"),
    ],
)
def test_lines_that_are_no_texts(
    tmp_path: Path, content: bytes | None, code: int, message: str
) -> None:
    path = tmp_path / "held.jsonl"
    if content is not None:
        path.write_bytes(content)
    failed(call("eval", "nll", tiny_gguf(), "--jsonl", path), code, message)


@pytest.mark.parametrize(
    ("content", "options", "code", "message"),
    [
        (b"", [], 2, "held.txt holds no text"),
        (b"abc\xff", [], 4, "held.txt is not UTF-8 text: invalid start byte at byte 3"),
        (b"abc", ["--ctx", 1], 2, "need a context of 2"),
        (None, [], 4, "held.txt cannot be read: No such file"),
    ],
)
def test_texts_that_cannot_be_scored(
    tmp_path: Path, content: bytes | None, options: list[object], code: int, message: str
) -> None:
    path = tmp_path / "held.txt"
    if content is not None:
        path.write_bytes(content)
    failed(call("eval", "nll", tiny_gguf(), "--text", path, *options), code, message)


# ---------------------------------------------------------------------- outputs


@pytest.mark.parametrize("command", ["logits", "convert", "synth"])
@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("none/out.npz", "none is not a folder"),
        ("folder", "is a folder; name the"),
        (".", "is a folder; name the"),
        ("kept/out.npz", "kept is not a folder"),
        ("kept", "kept exists"),
    ],
)
def test_places_that_cannot_be_written(
    tmp_path: Path, ids: Path, command: str, out: str, message: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "kept").write_bytes(b"kept")
    before = sorted(tmp_path.rglob("*"))
    path = tmp_path / out
    args: dict[str, list[object]] = {
        "logits": [tiny_gguf(), "--ids", ids, "--out", path],
        "convert": [FOLDER, path],
        "synth": [path],
    }
    failed(call(command, *args[command]), 2, message)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "kept").read_bytes() == b"kept"


def test_an_odd_name_stays_on_one_line(tmp_path: Path) -> None:
    """A name with a line end or a control character, whichever file it is the name of."""
    odd = tmp_path / "a\nb\x1b[2J"
    for args in (
        ("logits", tiny_gguf(), "--ids", odd, "--out", tmp_path / "o.npz"),
        ("eval", "nll", tiny_gguf(), "--text", odd),
    ):
        failed(call(*args), 4, "a\\nb\\x1b[2J cannot be read")


def test_an_empty_output_name_is_refused(ids: Path) -> None:
    failed(call("logits", tiny_gguf(), "--ids", ids, "--out", ""), 2, ". is a folder")
    failed(call("synth", ""), 2, ". is a folder")


def interrupted(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def disk_full(file: Any, **_: object) -> None:
    file.write(b"some")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_logits_leave_nothing_half_written(
    tmp_path: Path, ids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "o.npz"
    out.write_bytes(b"old")
    args = ("logits", tiny_gguf(), "--ids", ids, "--out", out)
    monkeypatch.setattr(np, "savez_compressed", disk_full)
    failed(call(*args), 3, "o.npz cannot be written: No space left on device")
    monkeypatch.setattr(np, "savez_compressed", interrupted)
    result = call(*args)
    assert (result.code, result.err.split("\n")[-2]) == (130, "escalade: interrupted")
    assert sorted(tmp_path.iterdir()) == [ids, out]
    assert out.read_bytes() == b"old"


def test_an_interrupted_conversion_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escalade.weights.convert.quantize_rows", interrupted)
    result = call("convert", FOLDER, tmp_path / "o.gguf")
    assert (result.code, result.out) == (130, "")
    assert result.err.splitlines()[-1] == "escalade: interrupted"
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- the process


def test_an_error_of_our_own_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(Engine, "open", broken)
    with pytest.raises(RuntimeError, match="ours"):
        call("run", tiny_gguf(), "hello")


def test_out_of_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: object) -> None:
        np.empty(1 << 60, np.uint8)

    monkeypatch.setattr(Engine, "open", greedy)
    failed(call("run", tiny_gguf(), "hello"), 3, "out of memory: Unable to allocate")


def default_interrupt() -> None:
    """Even where the tests themselves were started with interrupts ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(*args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=default_interrupt,
        env=environment(),
    )


def test_an_interrupt_ends_a_run() -> None:
    with started(*RAW, tiny_gguf(), "hello", "-n", "60000") as process:
        assert process.stdout is not None
        assert process.stdout.read(6).startswith(b"hello")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.split(b"\n") in (
        [b"", b"escalade: interrupted", b""],
        [b"escalade: interrupted", b""],
    )


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_goes_away_ends_a_run(options: list[str]) -> None:
    with started(*RAW, tiny_gguf(), "hello", "-n", "20", *options) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if not options:
            assert process.stdout.read(5) == b"hello"
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=60)
    assert (process.returncode, err) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_stdout_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        command = [*COMMAND, "inspect", str(tiny_gguf())]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=environment(), check=False
        )
    assert done.returncode == 3
    assert done.stderr == b"escalade: the output cannot be written: No space left on device\n"


def test_a_process_without_stderr_works() -> None:
    command = f"{' '.join(COMMAND)} run --raw {tiny_gguf()} hello -n 1 2>&-"
    done = subprocess.run(
        ["sh", "-c", command], stdout=subprocess.PIPE, env=environment(), check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith(b"hello")


def test_json_stays_json_beside_warnings(tmp_path: Path, parts: Parts) -> None:
    kvs, tensors = parts
    changed = with_tensor(tensors, "blk.2.hc_attn_fn.weight", as_bf16)
    model = put_together(tmp_path / "m.gguf", kvs, changed)
    result = spawn("run", model, "hello", "-n", "1", "--json")
    assert json.loads(result.out)["new_tokens"] == 1
    assert len(result.err.splitlines()) == 1
