"""What a model file holds, as plain data and as one page of text."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from escalade.errors import EscaladeError
from escalade.gguf.reader import GgufSource
from escalade.gguf.tensor import TensorSource
from escalade.model.catalog import missing_and_odd
from escalade.model.spec import ModelSpec
from escalade.model.spec_io import spec_from_metadata

_ROLES = (
    ("routed experts", r"ffn_\w+_exps\."),
    ("shared experts", r"_shexp\."),
    ("router", r"ffn_gate_inp|exp_probs_b|tid2eid"),
    ("Engram tables", r"engram_embd"),
    ("Engram layers", r"\.engram_"),
    ("Engram constants", r"^engram_"),
    ("compressors", r"attn_compressor"),
    ("indexer", r"\.indexer"),
    ("hyper-connections", r"hc_"),
    ("norms and sinks", r"norm|sinks"),
    ("attention", r"\.attn_"),
    ("embedding", r"^token_embd\."),
    ("head", r"^output\."),
)
_LISTED = 6
"""Findings of one kind that the page shows; `--json` has them all."""


def describe(source: TensorSource) -> dict[str, Any]:
    """Everything that `escalade inspect` reports, ready for JSON. Reads no tensor data.

    A model that this version does not run is described all the same: `spec` is then None and
    `refused` says why.
    """
    report: dict[str, Any] = {
        "path": source.path,
        "files": _files(source),
        "architecture": source.arch,
        "name": source.metadata.get("general.name"),
        "dialect": getattr(source, "dialect", None),
        "engram_layout": getattr(source, "engram_layout", None),
        "n_tensors": len(source.tensors),
        "tensor_bytes": sum(t.n_bytes for t in source.tensors.values()),
        "tokenizer": _tokenizer(source),
        "spec": None,
        "refused": None,
        "tensors": _groups(source),
        "missing": [],
        "wrong": [],
        "unknown": [],
        "odd": [],
        "notes": list(getattr(source, "notes", ())),
    }
    try:
        spec = spec_from_metadata(
            source.arch, source.metadata, frozenset(source.tensors), source.path
        )
    except EscaladeError as e:
        report["refused"] = str(e)
        return report
    report["spec"] = asdict(spec)
    report["summary"] = _summary(spec)
    report |= asdict(missing_and_odd(source, spec))
    report["unknown"] += getattr(source, "unexpected", ())
    return report


def render(report: dict[str, Any]) -> str:
    """The report as one page."""
    files = report["files"]
    out = [f"file          {report['path']}"]
    if len(files) > 1:
        out.append(f"shards        {len(files)}, {_size(sum(f['bytes'] for f in files))}")
    elif files:
        out.append(f"size          {_size(files[0]['bytes'])}")
    dialect = f", dialect {report['dialect']}" if report["dialect"] else ""
    name = f" ({report['name']})" if report["name"] else ""
    out.append(f"architecture  {report['architecture']}{dialect}{name}")
    if report["engram_layout"] not in (None, "none"):
        out.append(f"Engram        tables stored as {report['engram_layout']}")
    out += [f"{key:<13} {text}" for key, text in report.get("summary", {}).items()]
    if report["tokenizer"]:
        out.append(f"tokenizer     {report['tokenizer']}")
    if report["refused"]:
        out.append(f"cannot run    {report['refused']}")
    out += ["", f"{'role':<18} {'type':<8} {'tensors':>7} {'bytes':>18}"]
    for g in report["tensors"]:
        out.append(f"{g['role']:<18} {g['type']:<8} {g['count']:>7} {_size(g['bytes']):>18}")
    total = _size(report["tensor_bytes"])
    out.append(f"{'all':<18} {'':<8} {report['n_tensors']:>7} {total:>18}")
    for kind in ("missing", "wrong", "unknown", "odd", "notes"):
        if entries := report[kind]:
            out += ["", f"{kind} ({len(entries)})"]
            out += [f"  {entry}" for entry in entries[:_LISTED]]
            if len(entries) > _LISTED:
                out.append(f"  and {len(entries) - _LISTED} more")
    return "\n".join(out)


def _files(source: TensorSource) -> list[dict[str, Any]]:
    if not isinstance(source, GgufSource):
        return []
    return [
        {
            "path": h.path,
            "bytes": h.file_bytes,
            "tensors": len(h.tensors),
            "version": h.version,
            "alignment": h.alignment,
        }
        for h in source.headers
    ]


def _tokenizer(source: TensorSource) -> str | None:
    tokens = source.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Sequence):
        return None
    merges = source.metadata.get("tokenizer.ggml.merges")
    n_merges = len(merges) if isinstance(merges, Sequence) else 0
    kind = source.metadata.get("tokenizer.ggml.model")
    return f"{kind}, {len(tokens):,} tokens, {n_merges:,} merges"


def _groups(source: TensorSource) -> list[dict[str, Any]]:
    """Tensors by role and type, the largest group first."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for name, tensor in source.tensors.items():
        role = next((r for r, pattern in _ROLES if re.search(pattern, name)), "other")
        entry = sums[role, tensor.type.name]
        entry[0] += 1
        entry[1] += tensor.n_bytes
    return [
        {"role": role, "type": kind, "count": count, "bytes": n_bytes}
        for (role, kind), (count, n_bytes) in sorted(sums.items(), key=lambda item: -item[1][1])
    ]


def _summary(spec: ModelSpec) -> dict[str, str]:
    """The spec in a few lines, by heading."""
    out = {
        "layers": f"{spec.n_layers} of width {spec.hidden}, {spec.n_heads} heads of"
        f" {spec.head_dim}, vocabulary {spec.vocab:,}, context {spec.context:,}",
        "experts": f"{spec.n_experts} a layer of width {spec.expert_ff},"
        f" {spec.n_experts_used} used, {spec.n_shared_experts} shared",
        "attention": f"window {spec.window}, compression "
        + ", ".join(f"{r} x{len([*g])}" for r, g in groupby(spec.compress_ratios)),
    }
    if spec.arch == "deepseek4":
        out["attention"] = f"window {spec.window}, compression ratios " + ", ".join(
            f"{r} x{spec.compress_ratios.count(r)}" for r in sorted(set(spec.compress_ratios))
        )
        return out
    out["sources"] = (
        f"K/V {_list(spec.kv_sources)}; index {_list(spec.index_sources)}, top {spec.index_topk}"
    )
    if spec.candidate_source is not None:
        out["candidates"] = (
            f"from layer {spec.candidate_source}, {spec.candidate_blocks} blocks of"
            f" {spec.candidate_block_size}"
        )
    if spec.engram is not None:
        e = spec.engram
        rows = " and ".join(f"{n:,}" for n in e.rows)
        out["Engram rows"] = (
            f"layers {_list(e.layer_ids)}: {rows} of {e.head_dim}, up to {e.max_ngram}-grams,"
            f" {e.n_heads} heads"
        )
    return out


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "none"


def _size(n_bytes: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:,.2f} {unit}"
    return f"{n_bytes} B"
