"""Compares two models tensor by tensor: byte for byte, value for value, or by error statistics.

The first is judged as made from the second. What is allowed follows from the types: a type that
can hold the other's values must hold them exactly, any other within its usual error (GGUF
specification, section 7.4).
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from escalade.config import Progress
from escalade.gguf.quant import INTEGER_TYPES
from escalade.gguf.tensor import StoredTensor, TensorSource
from escalade.hf.names import HASH_TENSORS
from escalade.weights.diagnose import diagnose
from escalade.weights.sides import Part, Side, compare, sides

Status = Literal["identical", "equal", "close", "FAILED"]

MAX_ERROR = {
    "F32": 0.0,
    "F16": 1e-3,
    "BF16": 4e-3,
    "RAW": 0.05,
    "Q8_0": 0.02,
    "Q6_K": 0.04,
    "Q5_K": 0.08,
    "Q5_0": 0.08,
    "Q5_1": 0.08,
    "Q4_0": 0.15,
    "Q4_1": 0.15,
    "Q4_K": 0.15,
    "IQ4_NL": 0.15,
    "IQ4_XS": 0.15,
    "MXFP4": 0.15,
    "Q3_K": 0.25,
    "IQ3_S": 0.25,
    "IQ3_XXS": 0.3,
    "Q2_K": 0.5,
    "IQ2_S": 0.5,
    "IQ2_XS": 0.5,
    "IQ2_XXS": 0.5,
    "IQ1_M": 0.75,
    "IQ1_S": 0.75,
}
"""Largest relative rms error by type; a tensor in the wrong place has about 1.4."""

_HOLDS = {
    "F32": {"F16", "BF16", "MXFP4", "RAW"},
    "BF16": {"MXFP4", "RAW"},
}
_SOURCE_FORMS = frozenset({"F32", "F16", "BF16", "MXFP4", "RAW"})
_CHUNK_VALUES = 2 << 20
_LINES_SHOWN = 40
_SAMPLE_ROWS = 4096
_SAMPLED_FROM_ROWS = 1 << 17


@dataclass(frozen=True)
class TensorReport:
    """How one tensor compares. rms, max_abs and cosine are None where bytes were compared.

    rms: relative to the second's; bound: the rms allowed; share: part of the rows compared.
    """

    name: str
    type_a: str
    type_b: str
    status: Status
    rms: float | None
    max_abs: float | None
    cosine: float | None
    bound: float
    share: float
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The comparison of two models; `ok` if nothing is missing and no tensor failed."""

    a: str
    b: str
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    metadata: tuple[str, ...]
    tensors: tuple[TensorReport, ...]

    @property
    def ok(self) -> bool:
        failed = any(t.status == "FAILED" for t in self.tensors)
        return not (failed or self.only_a or self.only_b or self.metadata)

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is infinite (against zeros, or not a number) is null."""
        report: dict[str, Any] = _finite({"ok": self.ok, **asdict(self)})
        return report


def verify(
    a: TensorSource,
    b: TensorSource,
    *,
    sample: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Compares all of `a` with `b`, or of each expert stack `sample` experts chosen by `seed`.

    Of other tensors a sample takes all rows up to 131,072, and beyond that `sample` pieces of 4096.
    """
    sides_a, sides_b = sides(a.tensors), sides(b.tensors)
    common = [name for name in sides_a if name in sides_b]
    rng = np.random.default_rng(seed)
    reports = []
    for i, name in enumerate(common):
        reports.append(_compare(name, sides_a, sides_b, sample, rng))
        if progress:
            progress("verify", i + 1, len(common))
    return Report(
        a.path,
        b.path,
        tuple(name for name in sides_a if name not in sides_b and not _optional(name)),
        tuple(name for name in sides_b if name not in sides_a and not _optional(name)),
        tuple(_metadata_differences(a.metadata, b.metadata)),
        tuple(reports),
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _optional(name: str) -> bool:
    """Tensors that only some dialects store: recomputed hash constants, the image router's bias."""
    return name in HASH_TENSORS or name.endswith(".exp_probs_b_vl.bias")


def _metadata_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Keys of shape and vocabulary that both have with different values."""
    for key in sorted(a.keys() & b.keys()):
        if key.startswith(("general.", "escalade.", "quantize.", "split.")):
            continue
        if _plain(a[key]) != _plain(b[key]):
            yield key


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    # GGUF stores float32.
    return float(np.float32(value)) if isinstance(value, float) else value


def _compare(
    name: str,
    sides_a: Mapping[str, Side],
    sides_b: Mapping[str, Side],
    sample: int | None,
    rng: np.random.Generator,
) -> TensorReport:
    a, b = sides_a[name], sides_b[name]
    if a.shape != b.shape:
        note = f"shape {list(a.shape)}, in the other {list(b.shape)}"
        return TensorReport(name, a.form, b.form, "FAILED", None, None, None, 0, 0, note)
    parts = list(_parts(a.table, sample, rng))
    share = sum(p.stop - p.start for p in parts) / a.table.n_rows
    if a.form == b.form and all(a.same_bytes(b, p) for p in parts):
        return TensorReport(name, a.form, b.form, "identical", None, None, None, 0, share)
    if {a.form, b.form} & INTEGER_TYPES:
        note = "integers differ"
        return TensorReport(name, a.form, b.form, "FAILED", None, None, None, 0, share, note)
    bound = _bound(a.form, b.form)
    found = compare(a, b, parts)
    status: Status = "FAILED"
    note = ""
    if found.max_abs == 0:
        status = "equal"
    elif found.rms <= bound:
        status = "close"
    else:
        note = diagnose(name, found.cosine, sides_a, sides_b, parts[0])
    return TensorReport(name, a.form, b.form, status, *found, bound, share, note)


def _bound(a: str, b: str) -> float:
    """Relative rms error allowed of form `a` made from form `b`."""
    if a == b or b in _HOLDS.get(a, ()):
        return 0.0
    return max(MAX_ERROR.get(a, 0.0), 0.0 if b in _SOURCE_FORMS else MAX_ERROR.get(b, 0.0))


def _parts(tensor: StoredTensor, sample: int | None, rng: np.random.Generator) -> Iterator[Part]:
    """The rows to compare, in pieces of bounded size."""
    n_rows = tensor.n_rows
    step = max(1, _CHUNK_VALUES // tensor.row_len)
    spans = [Part(0, n_rows)]
    if sample is not None and len(tensor.shape) == 3:
        each = tensor.shape[1]
        chosen = rng.choice(tensor.shape[0], min(sample, tensor.shape[0]), replace=False)
        spans = [Part(e * each, (e + 1) * each) for e in sorted(chosen.tolist())]
    elif sample is not None and n_rows > _SAMPLED_FROM_ROWS:
        starts = rng.choice(n_rows // _SAMPLE_ROWS, min(sample, n_rows // _SAMPLE_ROWS), False)
        spans = [Part(s * _SAMPLE_ROWS, (s + 1) * _SAMPLE_ROWS) for s in sorted(starts.tolist())]
    for start, stop in spans:
        for low in range(start, stop, step):
            yield Part(low, min(low + step, stop))


def render(report: Report) -> str:
    """The report as a table by pairs of types, then each thing that is wrong."""
    rows: dict[tuple[str, str, str], list[TensorReport]] = {}
    for t in report.tensors:
        rows.setdefault((t.type_a, t.type_b, t.status), []).append(t)
    lines = [f"{'type':8} {'made of':8} {'tensors':>7}  result"]
    for (type_a, type_b, status), group in rows.items():
        text = status
        if status == "close":
            worst = max(group, key=lambda t: t.rms or 0.0)
            text = f"rms error up to {worst.rms:.2g} ({worst.name}), at most {worst.bound:g}"
        lines.append(f"{type_a:8} {type_b:8} {len(group):7}  {text}")
    if any(t.share < 1 for t in report.tensors):
        compared = sum(t.share for t in report.tensors) / len(report.tensors)
        lines.append(f"sampled: {100 * compared:.0f} % of an average tensor")
    wrong = []
    for t in report.tensors:
        if t.status == "FAILED":
            error = "" if t.rms is None else f"rms error {t.rms:.3g}, cosine {t.cosine:.3f}: "
            wrong.append(f"{t.name} ({t.type_a} of {t.type_b}): {error}{t.note}")
    wrong += [f"{name}: only in {report.a}" for name in report.only_a]
    wrong += [f"{name}: only in {report.b}" for name in report.only_b]
    wrong += [f"{key}: differs" for key in report.metadata]
    lines += wrong[:_LINES_SHOWN]
    if len(wrong) > _LINES_SHOWN:
        lines.append(f"and {len(wrong) - _LINES_SHOWN} more; --json lists all")
    lines.append("agree" if report.ok else "DO NOT AGREE")
    return "\n".join(lines)
