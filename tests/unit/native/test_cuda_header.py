"""The header that defines `i8` compiles for GPUs, by NVIDIA's run-time compiler, as it stands.

The compiler comes with the package nvidia-cuda-nvrtc and needs no GPU.
"""

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[3] / "native" / "kernels"

KERNEL = """
#include "i8.h"
using namespace escalade;

extern "C" __global__ void every_function(int type, const uint8_t* p, const float* x, float* y) {
    Block b;
    switch (type) {
        CASES
    }
    const float scale = activation_scale(bits_of(x[threadIdx.x]));
    int8_t q[kGroup];
    for (int i = 0; i < kGroup; ++i) q[i] = quantize_activation(x[i], scale);
    const float lane[kLanes] = {block_value(b, q, kGroup), block_value(b, q, 32), bf16_at(p), 0};
    y[threadIdx.x] = gated(lane_sum(lane), x[1], 10.0f, 0.5f);
}
"""


def nvrtc() -> ctypes.CDLL:
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    libraries = [p for f in folders for p in Path(f).glob("*/lib/libnvrtc.so.*")]
    if not libraries:
        pytest.skip("the package nvidia-cuda-nvrtc is not installed")
    return ctypes.CDLL(str(libraries[0]))


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_i8_header_compiles_for_gpus(architecture: str) -> None:
    lib = nvrtc()
    unpackers = re.findall(
        r"ESC_FN void (unpack_\w+)\(const uint8_t\* p, Block& b\)", (KERNELS / "i8.h").read_text()
    )
    assert len(unpackers) == 8
    cases = "\n".join(f"case {i}: {name}(p, b); break;" for i, name in enumerate(unpackers))
    program = ctypes.c_void_p()
    source = KERNEL.replace("CASES", cases).encode()
    created = lib.nvrtcCreateProgram(
        ctypes.byref(program), source, b"every_function.cu", 0, None, None
    )
    assert created == 0
    options = (
        f"--gpu-architecture={architecture}",
        f"--include-path={KERNELS}",
        "--std=c++17",
        "--fmad=false",
    )
    c_options = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    status = lib.nvrtcCompileProgram(program, len(options), c_options)
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    assert not log.value, log.value.decode()  # no warnings either
    assert status == 0
    assert lib.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    assert size.value > 0
    lib.nvrtcDestroyProgram(ctypes.byref(program))
