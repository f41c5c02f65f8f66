"""The Triton kernels fit every GPU of a wheel, and on Hopper have the instructions they rely on."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from grace.kernels import devices, triton_parts
from grace.kernels.attention.cross_attention import BeamQueries
from grace.kernels.attention.cross_attention_triton import cross_attention_triton
from grace.kernels.attention.prompt_attention import Heads, PromptQueries, PromptTokens
from grace.kernels.attention.prompt_attention_triton import (
    causal_attention_triton,
    place_heads_triton,
    prompt_attention_triton,
)
from grace.kernels.attention.self_attention import PagedPrefixes
from grace.kernels.attention.self_attention_triton import rearrange_triton, self_attention_triton
from grace.kernels.devices import Limits
from grace.kernels.encoder.arrange_tokens_triton import arrange_tokens_triton
from grace.kernels.encoder.encoder_attention import Part, TokenQueries
from grace.kernels.encoder.encoder_attention_triton import encoder_attention_triton
from grace.kernels.encoder.token_product import After, Norm, Run, TokenProduct
from grace.kernels.encoder.token_product_triton import share_user_triton, token_product_triton
from grace.kernels.products import row_factors_triton as factors
from grace.kernels.products.log_sums_triton import log_sums_triton
from grace.native.build import ARCHITECTURES

GPUS = [int(each.rstrip("a")) for each in ARCHITECTURES]
BLOCK_MEMORY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
SM_REGISTERS = 65_536


@dataclass(frozen=True)
class Compiled:
    """The kernel that triton.compile returned for a launch."""

    kernel: Any

    @property
    def shared_memory(self) -> int:
        return int(self.kernel.metadata.shared)

    @property
    def threads(self) -> int:
        return 32 * int(self.kernel.metadata.num_warps)

    @cached_property
    def resources(self) -> dict[str, int]:
        """REG, STACK, LOCAL and others, per thread; a kernel that spills has a stack."""
        found = re.findall(r"(\w+):(\d+)", self._dumped("--dump-resource-usage"))
        return {name: int(value) for name, value in found}

    @cached_property
    def lost_products(self) -> int:
        """Tensor-core products whose sums nobody reads: ptxas takes a negated sum for 0."""
        sass = self._dumped("-sass")
        assert "EXIT" in sass
        return len(re.findall(r"HGMMA\S* RZ,", sass))

    def _dumped(self, option: str) -> str:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.kernel.asm["cubin"])
            file.flush()
            command = [str(triton.knobs.nvidia.cuobjdump.path), option, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def count(self, instruction: str) -> int:
        return len(re.findall(instruction, self.kernel.asm["ptx"]))


def compiled_launch(gpu: int, body: Callable[..., Any], *arguments: Any) -> Compiled:
    """Compile the last launch of `body` for these arguments, of the device `meta`, for a GPU."""
    module = sys.modules[body.__module__]
    kernels = {name: x for name, x in vars(module).items() if isinstance(x, JITFunction)}
    fakes = {name: MagicMock() for name in kernels}
    limits = Limits(divmod(gpu, 10), BLOCK_MEMORY[gpu])
    with pytest.MonkeyPatch.context() as patch:
        for name, fake in fakes.items():
            patch.setattr(module, name, fake)
        for other in (devices, triton_parts, module):
            patch.setattr(other, "limits_of", lambda _: limits, raising=False)
        early = triton_parts.early_launch(torch.device("meta"))
        patch.setattr(module, "early_launch", lambda *_: early)  # also of many rows
        body(*arguments)
    launches = {name: fake.__getitem__.return_value.call_args for name, fake in fakes.items()}
    ((name, launch),) = [pair for pair in launches.items() if pair[1]]
    return Compiled(_compile(gpu, kernels[name], launch.args, launch.kwargs))


def _compile(gpu: int, kernel: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    names = "num_warps", "num_stages", "maxnreg", "launch_pdl"
    options = {name: named.pop(name) for name in names if name in named}
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **named}
    signature, constants, attributes = {}, {}, {}
    for place, param in enumerate(kernel.params):
        value, varies = values[param.name], param.do_not_specialize
        kind = "constexpr" if param.is_constexpr else mangle_type(value, specialize=not varies)
        signature[param.name] = kind
        if kind == "constexpr":
            constants[(place,)] = value
        elif isinstance(value, Tensor) or (
            isinstance(value, int) and value % 16 == 0 and not varies
        ):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", gpu, 32), options=options)


pytestmark = pytest.mark.compile

WIDE_LOAD = r"ld\.global[.\w:]*\.v4\.b32"
WIDE_STORE = r"st\.global[.\w:]*\.v4\.b32"
NARROW_HALF = r"(ld|st)\.global[.\w:]*\.b16\b"
TENSOR_CORES = r"wgmma\.mma_async|mma\.sync|tcgen05\.mma"
WGMMA = r"wgmma\.mma_async"
BULK_COPY = r"cp\.async\.bulk\.tensor"

SPILLS = {  # on 80, 86, 89, 90, 100, 120
    "cross long": (64, 40, 40, 0, 0, 88),
    "cross 128": (56, 16, 16, 24, 256, 40),
    "cross 256": (0, 0, 0, 256, 280, 0),
    "causal 128": (24, 32, 32, 0, 0, 48),
    "causal 256": (0, 0, 0, 232, 104, 0),
    "prompt 128": (80, 72, 72, 16, 80, 56),
    "prompt 256": (40, 0, 0, 1232, 1176, 0),
    "encoder": (0, 0, 0, 24, 112, 8),
    "biased": (64, 32, 32, 0, 0, 72),
    "float32": (1560, 1584, 1584, 7880, 8016, 1600),
    "product": (8, 0, 0, 0, 32, 0),
}
"""The most bytes that launches of a kind spill on each GPU; others spill none."""


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def prefixes(step: int, *, scaled: bool) -> PagedPrefixes:
    table, factors = meta(16384, 4, dtype=torch.int32), meta(40960, dtype=torch.float32)
    pool, bias = meta(40960, 3, 16, 128), meta(16, 4)
    return PagedPrefixes(pool, table, step, bias, 0.1, factors if scaled else None)


def queries(beams: int, tokens: int, d: int = 128, *, gathered: bool = False) -> BeamQueries:
    rows = 16 * beams
    keys, values = (meta(16, tokens, 2048 // d, d).transpose(1, 2) for _ in "kv")
    return BeamQueries(
        queries=meta(rows, 2048),
        keys=keys,
        values=values,
        key_mask=meta(16, tokens, dtype=torch.bool),
        scale=0.1,
        row_scale=meta(rows, dtype=torch.float32),
        query_rows=meta(rows, dtype=torch.int32) if gathered else None,
    )


def asked(count: int, tokens: int, heads: int, dtype: torch.dtype = torch.bfloat16) -> TokenQueries:
    keys, values = meta(16, tokens, 1024, dtype=dtype).chunk(2, dim=-1)
    mask = meta(16, tokens, dtype=torch.bool)
    return TokenQueries(meta(16, count, 512, dtype=dtype), keys, values, heads, 0.125, mask)


def in_parts(*parts: Part) -> TokenQueries:
    q, k, v = meta(16, 460, 1536).chunk(3, dim=-1)
    mask, out = meta(16, 492, dtype=torch.bool)[:, 32:], meta(16, 460, 512)
    return TokenQueries(q, k, v, 8, 0.125, mask, None, parts, out)


def product(
    requests: int, inner: int, wide: int, after: After, runs: tuple[Run, ...]
) -> TokenProduct:
    x, out = meta(requests, 504, inner), meta(requests, 460, wide)
    squares = meta(requests, 504, inner // 32, dtype=torch.float32)
    written = meta(requests, 460, wide // 32, dtype=torch.float32)
    other = {"open": meta(requests, 1, 3 * wide), "add": out}.get(after)
    more = (None, written) if after == "add" else (Norm(squares, 1e-6), None)
    return TokenProduct(x, meta(3, wide, inner), out, runs, after, other, *more)


@dataclass(frozen=True)
class Case:
    """A launch, and the instructions that it has at least so often on Hopper."""

    body: Callable[..., Any]
    arguments: tuple[Any, ...]
    least: dict[str, int]
    # half-precision loads and stores that it may have one by one: biases, say; None: any
    narrow: int | None = 0
    kind: str = ""  # a row of SPILLS
    two_fit_an_sm: bool = False


X, SQUARES = meta(16, 63, 512), meta(16, 504, 16, dtype=torch.float32)
TOKENS = meta(16, 504, 512)
WHOLE = ((0, 260), (260, 132), (392, 68))  # a sequence's first token and its number of tokens
EVENTS = tuple(Run(44 + begin, begin, count) for begin, count in WHOLE)
WITHOUT_SUMMARIES = tuple(Run(48 + begin, 4 + begin, count - 4) for begin, count in WHOLE)
TABLE, PARENTS = (meta(*shape, dtype=torch.int32) for shape in ((16384, 4), (16, 1024)))


def decoder_cases() -> Iterator[Case]:
    for step, scaled in ((0, True), (1, False), (3, True)):
        # 8 elements for each thread, from q and every key and value.
        least = {WIDE_LOAD: 1 + 2 * (step + 1), WIDE_STORE: 1}
        yield Case(self_attention_triton, (prefixes(step, scaled=scaled),), least, narrow=step + 1)
    for beams, gathered in ((1, False), (1024, False), (1024, True)):
        least = {WIDE_STORE: 1, WGMMA: 16 if beams > 1 else 0}
        given = (queries(beams, 128, gathered=gathered),)
        yield Case(cross_attention_triton, given, least, two_fit_an_sm=True)
    for tokens, d in ((500, 128), (512, 128), (256, 128), (256, 256)):
        kind = "cross long" if tokens > 256 else f"cross {d}"
        yield Case(cross_attention_triton, (queries(100, tokens, d),), {WGMMA: 8}, None, kind)
    yield Case(factors.row_factors_triton, (meta(16384, 2048), 1e-6), {WIDE_LOAD: 4})
    yield Case(rearrange_triton, (TABLE, PARENTS, 2), {"ld.global": 1})
    scale = meta(16384, dtype=torch.float32)
    for ffn, times in (("relu", 1), ("gated_gelu", 2)):
        least = {WIDE_LOAD: 2 * times, WIDE_STORE: 2}
        yield Case(factors.activate_triton, (meta(16384, 512 * times), scale, ffn), least)


def causal_cases() -> Iterator[Case]:
    """A program reads its prompt's length from memory, so one compiled launch fits all lengths."""
    offsets, table = meta(9, dtype=torch.int32), meta(2048, 3, dtype=torch.int32)
    positions, scale = meta(8000, dtype=torch.int32), meta(2048, dtype=torch.float32)
    for d in (128, 256):
        pairs, pool = (meta(count, 2, 1024 // d, d) for count in (8000, 4104))
        given = pairs, offsets, 1000, 0.1
        tokens = PromptTokens(meta(8000, 2048), *given)
        yield Case(causal_attention_triton, (tokens,), {WGMMA: 24}, None, f"causal {d}")
        beams = PromptQueries(meta(2048, 2048), *given, pool=pool, table=table, step=2)
        yield Case(prompt_attention_triton, (beams,), {WGMMA: 24}, None, f"prompt {d}")
        turns, gains = meta(1003, 2, d // 2, dtype=torch.float32), meta(2, d)
        heads = Heads(meta(8000, 4096), 2048 // d, positions, turns, 1e-6, gains=gains)
        yield Case(place_heads_triton, (heads, pairs), {WIDE_LOAD: 2, WIDE_STORE: 2}, narrow=None)
    yield Case(log_sums_triton, (meta(2048, 2048), meta(8192, 2048), scale), {WIDE_LOAD: 1})


def encoder_cases() -> Iterator[Case]:
    yield Case(factors.rms_norm_triton, (TOKENS, meta(512), 1e-6), {WIDE_LOAD: 1})
    shared = (TOKENS, SQUARES, meta(16, 4, 512), (44, 304))
    yield Case(share_user_triton, shared, {"ld.global": 1})
    events, masks = [meta(16, 132, 512)] * 3, [meta(16, 132, dtype=torch.bool)] * 3
    arranged = (meta(3, 4, 512), meta(16, 32, 512), events, masks)
    yield Case(arrange_tokens_triton, arranged, {WIDE_STORE: 1}, narrow=None)
    wide = {WIDE_LOAD + r"|cp\.async\.cg": 1, WIDE_STORE: 1}
    for attention, products in (
        *((asked(*x), 0) for x in ((4, 260, 8), (68, 68, 8), (260, 260, 8), (260, 260, 4))),
        *((asked(*x), 0) for x in ((260, 260, 2), (260, 33, 16))),
        (in_parts(*(Part(begin + 4, n - 4, begin, n) for begin, n in WHOLE)), (64 + 16) // 16),
        (in_parts(*(Part(begin, 4, begin, n) for begin, n in WHOLE)), 0),
        (in_parts(Part(3, 65, 0, 128)), 128 // 16),
    ):
        least = {TENSOR_CORES: 1, WGMMA: products, **wide}
        yield Case(encoder_attention_triton, (attention,), least, kind="encoder")
    yield Case(encoder_attention_triton, (asked(260, 260, 2, torch.float32),), {}, None, "float32")
    # A bias is read by single numbers.
    biased = TokenQueries(X, X, X, 8, 0.125, None, meta(8, 63 + 63 - 1))
    yield Case(encoder_attention_triton, (biased,), {TENSOR_CORES: 1}, None, "biased")
    after: After
    for after in ("gate", "nothing", "open", "add"):
        for out in (512,) if after == "gate" else (512, 1024):
            for requests in (1, 2, 16):
                asked_for = product(requests, 512, out, after, EVENTS)
                least = {TENSOR_CORES: 1, **wide}
                yield Case(token_product_triton, (asked_for,), least, kind="product")
    for inner, out, after in ((512, 1536, "nothing"), (512, 512, "add"), (512, 1024, "open")):
        least = {WGMMA: 1, BULK_COPY: 0 if after == "nothing" else 1}
        asked_for = product(16, inner, out, after, WITHOUT_SUMMARIES)
        yield Case(token_product_triton, (asked_for,), least, 0, "product", two_fit_an_sm=True)


CASES = [*decoder_cases(), *causal_cases(), *encoder_cases()]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.body.__name__)
def test_a_launch_fits_an_sm_without_spills_and_with_the_instructions_it_relies_on(
    case: Case, gpu: int
) -> None:
    made = compiled_launch(gpu, case.body, *case.arguments)
    registers, most = made.threads * made.resources["REG"], BLOCK_MEMORY[gpu]
    allowed = SPILLS.get(case.kind, (0,) * len(GPUS))[GPUS.index(gpu)]
    assert made.resources["STACK"] <= allowed
    assert made.resources["LOCAL"] == 0
    assert made.shared_memory <= most
    assert registers <= SM_REGISTERS
    assert made.count("griddepcontrol.wait") == int(gpu >= 90)
    assert made.count(TENSOR_CORES) >= min(1, case.least.get(WGMMA, 0))
    if gpu != 90:
        return
    assert made.lost_products == 0
    assert case.narrow is None or made.count(NARROW_HALF) <= case.narrow
    for instruction, least in case.least.items():
        assert made.count(instruction) >= least, instruction
    if case.two_fit_an_sm:
        assert 2 * (made.shared_memory + 1024) <= most + 1024
        assert 2 * registers <= SM_REGISTERS


def test_every_kernel_has_a_launch(repository: Path) -> None:
    text = "".join(file.read_text() for file in (repository / "kernels").rglob("*_triton.py"))
    names = {case.body.__name__ for case in CASES}
    assert set(re.findall(r"(?m)^def (\w+_triton)", text)) == names
