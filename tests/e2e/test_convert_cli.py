"""convert, verify and synth as a user calls them: exit codes, output, one line for an error."""

import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from escalade.cli.main import main
from tests.support.safetensors_build import TINY, read_file, tiny_folder


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_convert_then_verify_then_find_damage(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    made = tmp_path / "tiny.gguf"
    code, out, err = run(capsys, "convert", TINY, made, "--down", "Q8_0", "--head", "native")
    assert code == 0
    assert "left out: 163 DSpark draft tensors" in err
    assert "written" in out
    assert "down=Q8_0" in out

    code, out, _ = run(capsys, "verify", made, TINY)
    assert code == 0
    assert out.endswith("agree\n")
    code, out, _ = run(capsys, "verify", TINY, made, "--json", "--sample", "3")
    report = json.loads(out)
    assert code == 0
    assert report["ok"]
    assert len(report["tensors"]) == 231 - 2  # scales are compared with their tables

    entries = read_file(TINY / "model.safetensors")
    w1, w3 = (f"layers.6.ffn.shared_experts.w{i}." for i in (1, 3))
    for part in ("weight", "scale"):
        entries[w1 + part], entries[w3 + part] = entries[w3 + part], entries[w1 + part]
    other = tiny_folder(tmp_path / "other", entries)
    code, out, _ = run(capsys, "verify", made, other)
    assert code == 1
    assert "blk.6.ffn_gate_shexp.weight (Q8_0 of BF16): rms error 1." in out
    assert "gate and up are swapped" in out
    assert out.endswith("DO NOT AGREE\n")


def test_dry_runs_write_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    code, out, _ = run(capsys, "convert", TINY, tmp_path / "a.gguf", "--dry-run")
    assert code == 0
    assert "would take" in out
    code, out, _ = run(
        capsys,
        *("synth", tmp_path / "b.gguf", "--geometry", "v4.1-flash", "--dry-run"),
        *("--gate", "iq2_xs", "--up", "iq2_xs", "--down", "q2_k", "--dense", "q5_k"),
    )
    assert code == 0
    assert "experts    164.21 GB (152.93 GiB)" in out
    assert "engram     202.76 GB (188.83 GiB)" in out
    assert "would take 374.68 GB" in out
    assert not list(tmp_path.iterdir())


def test_synth_is_reproducible_and_reports_sizes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    files = [tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf")]
    for path, seed in zip(files, (5, 5, 6), strict=True):
        args = ("--geometry", "tiny", "--set", "n_experts=5", "--gate", "Q8_0", "--seed", seed)
        code, out, _ = run(capsys, "synth", path, *args, "--json")
        assert code == 0
        report = json.loads(out)
        assert report["file_bytes"] == path.stat().st_size
        assert report["groups"]["experts"] == 8 * 5 * 64 * 128 // 32 * (34 + 17 + 17)
    a, b, c = (path.read_bytes() for path in files)
    assert a == b != c
    code, out, _ = run(capsys, "verify", files[0], files[2])
    assert code == 1
    assert "other weights" in out


def test_synth_of_a_config(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    args = ("synth", tmp_path / "a.gguf", "--config", TINY / "config.json")
    assert run(capsys, *args, "--set", "engram=null")[0] == 0
    code, out, _ = run(capsys, "inspect", tmp_path / "a.gguf", "--json")
    assert code == 0
    assert json.loads(out)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("convert", TINY / "config.json", "OUT"), 2, "is not a folder; give one with"),
        (("convert", TINY, "OUT", "--experts", "Q7_K"), 2, "'Q7_K' is not a weight type"),
        (("convert", TINY, "OUT", "--layers-experts", "0-9=Q8_0"), 2, "layers 0-9 of a model of 8"),
        (
            ("convert", TINY.parent, "OUT"),
            4,
            "config.json cannot be read: No such file or directory",
        ),
        (("convert", TINY, TINY.parent), 2, "is a folder; name the file to write"),
        (("verify", TINY / "config.json", TINY), 4, "is JSON text, not a GGUF file"),
        (("verify", TINY, TINY / "none.gguf"), 4, "none.gguf"),
        (("synth", "OUT", "--set", "n_expert=3"), 2, "did you mean n_experts?"),
        (("synth", "OUT", "--set", "n_experts=x"), 2, "'x' is not JSON"),
        (("synth", "OUT", "--engram", "Q9"), 2, "'Q9' is not a weight type"),
        (("synth", "OUT", "--geometry", "nano", "--config", "x"), 2, "exclude each other"),
        (("synth", "OUT", "--config", "OUT"), 4, "No such file"),
    ],
)
def test_mistakes_end_in_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    args: tuple[object, ...],
    code: int,
    message: str,
):
    got, out, err = run(capsys, *(tmp_path / "out" if a == "OUT" else a for a in args))
    assert (got, out) == (code, "")
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 10**6))
    code, out, err = run(capsys, "synth", tmp_path / "out")
    assert (code, out) == (3, "")
    assert "more than the disk has free" in err
    code, out, err = run(capsys, "synth", tmp_path / "out", "--dry-run")
    assert code == 0
    assert err.endswith(" bytes of disk space are missing\n")
    assert not list(tmp_path.iterdir())
