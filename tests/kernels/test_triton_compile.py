"""The Triton kernels compile for sm_90, at the sizes of the paper, with the loads they rely on."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from grace.kernels.decode.cross_attention_triton import cross_attention_triton
from grace.kernels.decode.self_attention_triton import rearrange_triton, self_attention_triton
from grace.kernels.encoder.encoder_attention import Part
from grace.kernels.encoder.encoder_attention_triton import encoder_attention_triton
from grace.kernels.encoder.rms_norm_triton import rms_norm_triton
from grace.kernels.encoder.token_product import Norm, Run
from grace.kernels.encoder.token_product_triton import share_user_triton, token_product_triton
from grace.kernels.products.row_factors_triton import activate_triton, row_factors_triton

SHARED_MEMORY = 232_448  # bytes that one block of sm_90 may have

_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


@dataclass(frozen=True)
class Compiled:
    """The grid of a launch, the kernel that triton.compile returned for it, and if it is early."""

    grid: tuple[int, ...]
    kernel: Any
    early: bool

    @property
    def ptx(self) -> str:
        return str(self.kernel.asm["ptx"])

    @property
    def shared_memory(self) -> int:
        return int(self.kernel.metadata.shared)

    @property
    def threads(self) -> int:
        return 32 * int(self.kernel.metadata.num_warps)

    @cached_property
    def resources(self) -> dict[str, int]:
        """REG, STACK, LOCAL and others, per thread; a kernel that spills has a stack."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.kernel.asm["cubin"])
            file.flush()
            done = subprocess.run(
                [str(triton.knobs.nvidia.cuobjdump.path), "--dump-resource-usage", file.name],
                capture_output=True,
                text=True,
                check=True,
            )
        return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", done.stdout)}

    @cached_property
    def lost_products(self) -> int:
        """Tensor-core products whose sums nobody reads: ptxas takes a negated sum for 0."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.kernel.asm["cubin"])
            file.flush()
            tool = str(triton.knobs.nvidia.cuobjdump.path)
            sass = subprocess.run(
                [tool, "-sass", file.name], capture_output=True, text=True, check=True
            ).stdout
        assert "EXIT" in sass
        return len(re.findall(r"HGMMA\S* RZ,", sass))

    def count(self, instruction: str) -> int:
        return len(re.findall(instruction, self.ptx))


class _Recorder:
    """A fake kernel that records its launches."""

    def __init__(self) -> None:
        self.launches: list[tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **named: self.launches.append((grid, args, named))


def compiled_launch(body: Callable[..., Tensor], *arguments: Any) -> Compiled:
    """Compile the one kernel that `body` launches for these arguments, of the device `meta`."""
    module = sys.modules[body.__module__]
    kernels = {name: x for name, x in vars(module).items() if isinstance(x, JITFunction)}
    recorders = {name: _Recorder() for name in kernels}
    with pytest.MonkeyPatch.context() as patch:
        for name, recorder in recorders.items():
            patch.setattr(module, name, recorder)
        if "early_launch" in vars(module):
            hopper = {"early": True, "launch_pdl": True}
            patch.setattr(module, "early_launch", lambda *_: hopper)
        body(*arguments)
    ((name, recorder),) = [pair for pair in recorders.items() if pair[1].launches]
    ((grid, args, named),) = recorder.launches
    early = named.get("early", False)
    return Compiled(grid, _compile(kernels[name], args, named), early)


def _compile(kernel: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    names = "num_warps", "num_stages", "maxnreg", "launch_pdl"
    options = {name: named.pop(name) for name in names if name in named}
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **named}
    signature, constants, attributes = {}, {}, {}
    for place, param in enumerate(kernel.params):
        value = values[param.name]
        signature[param.name] = "constexpr" if param.is_constexpr else _type(value)
        if signature[param.name] == "constexpr":
            constants[(place,)] = value
        elif isinstance(value, Tensor) or (
            isinstance(value, int) and value % 16 == 0 and not param.do_not_specialize
        ):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return _TYPES[value.dtype]
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{_TYPES[value.base.dtype][1:]}{list(value.block_shape)}>"
    if isinstance(value, float):
        return "fp32"
    return "constexpr" if value is None or value == 1 else "i32"


pytestmark = pytest.mark.compile

WIDE_LOAD = r"ld\.global[.\w:]*\.v4\.b32"
WIDE_STORE = r"st\.global[.\w:]*\.v4\.b32"
NARROW_HALF = r"(ld|st)\.global[.\w:]*\.b16\b"
TENSOR_CORES = r"wgmma\.mma_async|mma\.sync"


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def compiled(body: Callable[..., Tensor], *arguments: Any, stack: int = 0) -> Compiled:
    """A kernel that spills at most `stack` bytes and fits an SM."""
    made = compiled_launch(body, *arguments)
    assert made.resources["STACK"] <= stack
    assert made.resources["LOCAL"] == 0
    assert made.shared_memory <= SHARED_MEMORY
    assert made.threads * made.resources["REG"] <= 65_536
    assert made.lost_products == 0
    assert made.count("griddepcontrol.wait") == int(made.early)
    return made


def assert_wide(made: Compiled) -> None:
    assert made.count(NARROW_HALF) == 0
    assert made.count(WIDE_LOAD) + made.count(r"cp\.async\.cg") > 0
    assert made.count(WIDE_STORE) > 0


@pytest.mark.parametrize(("step", "scaled"), [(0, True), (1, False), (3, True)], ids=str)
def test_self_attention_reads_16_bytes_at_a_time(step: int, scaled: bool) -> None:
    table, factors = meta(16384, 4, dtype=torch.int32), meta(40960, dtype=torch.float32)
    made = compiled(
        self_attention_triton,
        *(meta(40960, 3, 16, 128), table, step, meta(16, 4), 0.1, factors if scaled else None),
    )
    assert made.count(NARROW_HALF) <= step + 1  # the biases
    elements = 16384 * 2048 // (made.grid[0] * made.grid[1] * made.threads)
    assert made.count(WIDE_LOAD) == (1 + 2 * (step + 1)) * elements // 8
    assert made.count(WIDE_STORE) == elements // 8


@pytest.mark.parametrize(("beams", "gathered"), [(1, False), (1024, False), (1024, True)], ids=str)
def test_cross_attention_fits_two_programs_on_an_sm(beams: int, gathered: bool) -> None:
    rows = 16 * beams
    keys, values = (meta(16, 128, 16, 128).transpose(1, 2) for _ in "kv")
    made = compiled(
        cross_attention_triton,
        *(meta(rows, 2048), keys, values, meta(16, 128, dtype=torch.bool), 0.1),
        *(meta(rows, dtype=torch.float32), meta(rows, dtype=torch.int32) if gathered else None),
    )
    assert 2 * (made.shared_memory + 1024) <= SHARED_MEMORY + 1024
    assert 2 * made.threads * made.resources["REG"] <= 65_536
    assert made.count(NARROW_HALF) == 0
    assert made.count(WIDE_STORE) >= 1
    if beams > 1:
        assert made.count("wgmma.mma_async") >= 16


def test_a_context_too_long_for_one_tile_compiles() -> None:
    made = compiled(
        cross_attention_triton,
        *(meta(1600, 2048), *(meta(16, 16, 500, 128) for _ in "kv")),
        *(meta(16, 500, dtype=torch.bool), 0.1),
    )
    assert made.count("wgmma.mma_async") >= 8


def test_row_factors_read_16_bytes_at_a_time() -> None:
    made = compiled(row_factors_triton, meta(16384, 2048), 1e-6)
    assert made.count(NARROW_HALF) == 0
    assert made.count(WIDE_LOAD) == 16384 * 2048 // 8 // (made.grid[0] * made.threads)


@pytest.mark.parametrize("ffn", ["relu", "gated_gelu"])
def test_activation_reads_and_writes_16_bytes_at_a_time(ffn: str) -> None:
    wide = 512 if ffn == "relu" else 1024
    scale = meta(16384, dtype=torch.float32)
    made = compiled(activate_triton, meta(16384, wide), scale, ffn)
    assert made.count(NARROW_HALF) == 0
    per_thread = 16384 * 512 // 8 // (made.grid[0] * made.grid[1] * made.threads)
    assert made.count(WIDE_LOAD) == per_thread * wide // 512
    assert made.count(WIDE_STORE) == per_thread


FEW_SPILLED = 24  # bytes; with this few, a fifth program on an SM pays


def test_rearrangement_compiles() -> None:
    table, parents = meta(16384, 4, dtype=torch.int32), meta(16, 1024, dtype=torch.int32)
    compiled(rearrange_triton, table, parents, 2)


@pytest.mark.parametrize(
    ("queries", "tokens", "heads"),
    [(4, 260, 8), (68, 68, 8), (260, 260, 8), (260, 260, 4), (260, 260, 2), (260, 33, 16)],
)
def test_encoder_attention_compiles_to_tensor_cores_and_wide_loads(
    queries: int, tokens: int, heads: int
) -> None:
    keys, values = meta(16, tokens, 1024).chunk(2, dim=-1)
    mask = meta(16, tokens, dtype=torch.bool)
    queried = meta(16, queries, 512)
    made = compiled(
        *(encoder_attention_triton, queried, keys, values, heads, 0.125, mask), stack=FEW_SPILLED
    )
    assert_wide(made)
    assert made.count(TENSOR_CORES) > 0


WHOLE = ((0, 260), (260, 132), (392, 68))  # a sequence's first token and its number of tokens


@pytest.mark.parametrize(
    ("parts", "keys"),
    [
        ([Part(begin + 4, count - 4, begin, count) for begin, count in WHOLE], 64 + 16),
        ([Part(begin, 4, begin, count) for begin, count in WHOLE], 64 + 16),
        ([Part(3, 65, 0, 128)], 128),
    ],
    ids=["events", "summaries", "no-rest"],
)
def test_encoder_attention_in_parts_multiplies_whole_blocks_and_the_rest(
    parts: list[Part], keys: int
) -> None:
    q, k, v = meta(16, 460, 1536).chunk(3, dim=-1)
    mask, out = meta(16, 492, dtype=torch.bool)[:, 32:], meta(16, 460, 512)
    made = compiled(
        *(encoder_attention_triton, q, k, v, 8, 0.125, mask, None, parts, out), stack=FEW_SPILLED
    )
    assert_wide(made)
    if parts[0].queries >= 64:
        assert made.count("wgmma.mma_async") >= keys // 16
    else:
        assert made.count(TENSOR_CORES) > 0


def test_encoder_attention_with_a_bias_compiles_to_tensor_cores() -> None:
    x, bias = meta(16, 63, 512), meta(8, 63 + 63 - 1)
    made = compiled(encoder_attention_triton, x, x, x, 8, 0.125, None, bias)
    assert made.count(TENSOR_CORES) > 0


X, HEADS = meta(16, 504, 512), meta(16, 260, 512)[:, :4]
SQUARES = meta(16, 504, 16, dtype=torch.float32)
EVENTS = (Run(44, 0, 260), Run(304, 260, 132), Run(436, 392, 68))


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        pytest.param(rms_norm_triton, (X, meta(512), 1e-6), id="rms_norm"),
        pytest.param(rms_norm_triton, (HEADS, meta(512), 1e-6), id="rms_norm-of-a-slice"),
        pytest.param(
            share_user_triton, (X, SQUARES, meta(16, 4, 512), (44, 304, 436)), id="share_user"
        ),
    ],
)
def test_the_encoder_s_small_operations_compile_without_spills(
    body: Callable[..., Tensor], arguments: tuple[Any, ...]
) -> None:
    assert compiled(body, *arguments).count(NARROW_HALF) == 0


@pytest.mark.parametrize("requests", [1, 2, 16])
@pytest.mark.parametrize("wide", [512, 1024])
@pytest.mark.parametrize("after", ["nothing", "open", "add", "gate"])
def test_the_products_of_sequences_compile_to_tensor_cores_and_wide_loads(
    requests: int, wide: int, after: str
) -> None:
    if after == "gate" and wide != 512:
        pytest.skip("a gate is square")
    x, dense = meta(requests, 504, 512), meta(requests, 460, wide)
    squares = meta(requests, 504, 16, dtype=torch.float32)
    written = meta(requests, 460, wide // 32, dtype=torch.float32)
    other = {"open": meta(requests, 1, 3 * wide), "add": dense}.get(after)
    more = (None, written) if after == "add" else (Norm(squares, 1e-6), None)
    weight = meta(3, wide, 512)
    made = compiled(token_product_triton, x, weight, dense, EVENTS, after, other, *more)
    assert_wide(made)
    assert made.count(TENSOR_CORES) > 0


@pytest.mark.parametrize(
    ("inner", "wide", "after", "copies"),
    [
        (512, 1536, "nothing", 0),
        (512, 512, "add", 1),
        (512, 1024, "open", 1),
        (1024, 512, "add", 1),
    ],
)
def test_two_programs_of_a_product_of_events_fit_an_sm(
    inner: int, wide: int, after: str, copies: int
) -> None:
    runs = (Run(48, 4, 256), Run(308, 264, 128), Run(440, 396, 64))  # without their summaries
    x, out = meta(16, 504, inner), meta(16, 460, wide)
    squares = meta(16, 504, inner // 32, dtype=torch.float32)
    written = meta(16, 460, wide // 32, dtype=torch.float32)
    other = {"open": meta(16, 1, 3 * wide), "add": out}.get(after)
    more = (None, written) if after == "add" else (Norm(squares, 1e-6), None)
    weight = meta(3, wide, inner)
    made = compiled(token_product_triton, x, weight, out, runs, after, other, *more)
    assert 2 * (made.shared_memory + 1024) <= SHARED_MEMORY + 1024
    assert 2 * made.threads * made.resources["REG"] <= 65_536
    assert (made.count(r"cp\.async\.bulk\.tensor") > 0) == bool(copies)
    assert made.count("wgmma.mma_async") > 0
