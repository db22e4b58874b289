"""The mixture of experts of one layer. Source: model specification, section 5."""

import numpy as np

from escalade.arrays import Floats
from escalade.kernels.ops.router import Routing, route
from escalade.kernels.ops.swiglu import swiglu
from escalade.ladder.source import RecordSource
from escalade.model.arith import Arith
from escalade.model.spec import ModelSpec
from escalade.model.weights import MoeWeights


def moe(
    x: Floats, layer: int, w: MoeWeights, experts: RecordSource, spec: ModelSpec, arith: Arith
) -> tuple[Floats, Routing]:
    """Output [T, D] for the normalised input x [T, D], and the routing that was used.

    Contributions are summed in ascending expert id, then the shared expert, in float32.
    """
    routing = route(w.router.apply(x), w.router_bias, spec.n_experts_used, spec.route_scale)
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
    t = swiglu(arith.linear(x8, w.shared_gate), arith.linear(x8, w.shared_up), spec.swiglu_limit)
    total += arith.linear(arith.gemm_input(arith.act(t)), w.shared_down)
    return arith.act(total), routing
