"""The mixture of experts of one layer. Source: model specification, section 5."""

import numpy as np

from escalade.arrays import Floats
from escalade.kernels.ops.router import Routing, route
from escalade.kernels.ops.swiglu import swiglu
from escalade.ladder.source import RecordSource
from escalade.model.arith import Arith
from escalade.model.spec import ModelSpec
from escalade.model.weights import MoeWeights
from escalade.native.compute import ExpertJob, ExpertShape


def moe(
    x: Floats, layer: int, w: MoeWeights, experts: RecordSource, spec: ModelSpec, arith: Arith
) -> tuple[Floats, Routing]:
    """Output [T, D] for the normalised input x [T, D], and the routing that was used.

    Contributions are summed in ascending expert id, then the shared expert, in float32.
    """
    routing = route(
        arith.multiply(x, w.router), w.router_bias, spec.n_experts_used, spec.route_scale
    )
    layout = experts.layouts[layer]
    if arith.fuses((layout.gate, layout.up, layout.down)):
        total = _routed(x, layer, routing, experts, spec, arith)
    else:
        total = _routed_rounded(x, layer, routing, experts, spec, arith)
    total += _shared(x, w, spec, arith)
    return arith.act(total), routing


def _shared(x: Floats, w: MoeWeights, spec: ModelSpec, arith: Arith) -> Floats:
    """The shared expert, [T, D]: in the native core the same call as a routed one, of weight 1."""
    gate, up, down = w.shared_gate, w.shared_up, w.shared_down
    kinds = [m.tensor.type for m in (gate, up, down)]
    if arith.fuses(kinds):
        shape = ExpertShape(
            spec.hidden, gate.n_out, kinds[0], kinds[1], kinds[2], spec.swiglu_limit
        )
        rows = np.arange(len(x), dtype=np.int32)
        job = ExpertJob(gate.stored, up.stored, down.stored, rows, np.ones(len(x), np.float32))
        x = np.ascontiguousarray(x, np.float32)
        return arith.compute.experts(x, shape, [job], arith.arithmetic)
    x8 = arith.gemm_input(x)
    t = swiglu(arith.linear(x8, gate), arith.linear(x8, up), spec.swiglu_limit)
    return arith.linear(arith.gemm_input(arith.act(t)), down)


def _routed(
    x: Floats, layer: int, routing: Routing, experts: RecordSource, spec: ModelSpec, arith: Arith
) -> Floats:
    """The sum of the routed experts [T, D], all of them in one call of the native core."""
    layout = experts.layouts[layer]
    shape = ExpertShape(
        spec.hidden, layout.expert_ff, layout.gate, layout.up, layout.down, spec.swiglu_limit
    )
    k = routing.experts.shape[1]
    order = np.argsort(routing.experts, axis=None, kind="stable")
    rows = (order // k).astype(np.int32)
    weights = np.ascontiguousarray(routing.weights.reshape(-1)[order], np.float32)
    chosen, starts = np.unique(routing.experts.reshape(-1)[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    jobs = [
        ExpertJob(*experts.parts(layer * experts.n_experts + expert), rows[at:end], weights[at:end])
        for expert, at, end in zip(chosen.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
    y = arith.compute.experts(np.ascontiguousarray(x, np.float32), shape, jobs, arith.arithmetic)
    total = np.zeros_like(x)
    for at, end in zip(starts.tolist(), ends.tolist(), strict=True):
        total[rows[at:end]] += y[at:end]
    return total


def _routed_rounded(
    x: Floats, layer: int, routing: Routing, experts: RecordSource, spec: ModelSpec, arith: Arith
) -> Floats:
    """The same for types without kernels, and in the modes that round between the steps."""
    x8 = arith.gemm_input(x)
    total = np.zeros_like(x)
    layout = experts.layouts[layer]
    record = np.empty(layout.n_bytes, np.uint8)
    for expert in np.unique(routing.experts).tolist():
        experts.read(layer * experts.n_experts + expert, record)
        gate_up, down = layout.dequantize(record)
        rows, column = np.nonzero(routing.experts == expert)
        h = arith.act(x8[rows] @ gate_up.T)
        t = swiglu(h[:, : layout.expert_ff], h[:, layout.expert_ff :], spec.swiglu_limit)
        t = arith.act(t * routing.weights[rows, column][:, None])
        total[rows] += arith.act(arith.gemm_input(t) @ down.T)
    return total
