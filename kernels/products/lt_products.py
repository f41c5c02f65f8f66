"""Matrix products on a GPU by algorithms that cuBLAS offers but does not choose itself.

At the decoder's largest sizes a GPU is at its power limit, where a product's time is its energy.
Two shapes of the paper's decoder cost less with other tiles: about 2 % of its time and energy.
`_CHOSEN` has the best of 130 settings for these shapes, on an H200 with cuBLAS 13.0. For the other
shapes, cuBLAS chooses the best itself. A product uses `_CHOSEN` if cuBLAS offers that algorithm;
torch computes every other product. All sum in float32, in an order that depends only on the shape.
"""

import ctypes
import weakref
from collections.abc import Mapping
from ctypes import (
    byref,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass

import torch
from torch import Tensor

from grace.configs.errors import DeviceError
from grace.kernels.devices import require_device

_LEAST_ROWS = 4096
_OFFERED = 32  # algorithms that cuBLAS is asked for
_ALIGNMENT = 256  # of addresses, in bytes: cuBLAS expects it by default
_WORKSPACE = 32 << 20
_SMS = 132

# Names as in cublasLt.h.
_COMPUTE_32F, _R_32F, _R_16BF = 68, 0, 14
_DESC_TRANSA = 3
_PREFERENCE_WORKSPACE = 1
_ALGO_TILE_ID, _ALGO_SPLITK, _ALGO_CLUSTER_ID = 1, 2, 8
_TILE_128X128, _TILE_176X128 = 20, 201
_CLUSTER_2X1, _CLUSTER_1X2 = 3, 5


@dataclass(frozen=True, slots=True)
class _Product:
    """out [rows, outs] = x [rows, inner] W^T, or adds to it."""

    rows: int
    outs: int
    inner: int
    adds: bool


# (outs, inner, adds): (tile, cluster). cuBLAS counts in columns: a tile has outs x rows.
# q, k and v: tiles of 176 x 128 cut 16384 rows into 33.9 waves over 132 SMs, those of 128 x 256
# into 23.3, whose last is mostly idle.
# The second product of the feed-forward, added to the residual: with so few terms to sum it waits
# for the residual's memory, and small tiles have more of it in flight.
_CHOSEN: Mapping[tuple[int, int, bool], tuple[int, int]] = {
    (6144, 2048, False): (_TILE_176X128, _CLUSTER_1X2),
    (2048, 512, True): (_TILE_128X128, _CLUSTER_2X1),
}


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", c_uint64 * 8),)


class _Offer(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace", c_size_t),
        ("status", c_int32),
        ("waves", c_float),
        ("reserved", c_int32 * 4),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The arguments of one product except its addresses."""

    desc: c_void_p
    weight: c_void_p
    x: c_void_p
    out: c_void_p
    beta: c_float
    algorithm: _Algorithm


class LtProducts:
    """Products of bfloat16 rows on one device, which share a workspace.

    So only one runs on the GPU at a time: every owner of weights has its own `LtProducts`.
    """

    def __init__(self, device: torch.device) -> None:
        require_device(device)
        self._device = device
        self._library = _open()
        self._plans: dict[_Product, _Plan | None] = {}
        self._workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)
        self._made: list[tuple[str, c_void_p]] = []
        with torch.cuda.device(device):
            self._handle = self._create("cublasLt")
        weakref.finalize(self, _destroy, self._library, self._made)

    @staticmethod
    def fit(device: torch.device, dtype: torch.dtype) -> bool:
        """Return whether `_CHOSEN` is for such rows on such a GPU."""
        if device.type != "cuda" or dtype != torch.bfloat16:
            return False
        require_device(device)
        properties = torch.cuda.get_device_properties(device)
        return (properties.major, properties.multi_processor_count) == (9, _SMS)

    def into(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Write out [rows, outs] = x [rows, inner] W^T in place.   weight [outs, inner]"""
        if not self._run(x, weight, out, adds=False):
            torch.mm(x, weight.t(), out=out)

    def add(self, residual: Tensor, x: Tensor, weight: Tensor) -> None:
        """Add x W^T to the residual in place."""
        if not self._run(x, weight, residual, adds=True):
            residual.addmm_(x, weight.t())

    def chosen(self, rows: int, outs: int, inner: int, adds: bool) -> bool:
        """Return whether an algorithm of this file computes such a product."""
        return self._plan(_Product(rows, outs, inner, adds)) is not None

    def _run(self, x: Tensor, weight: Tensor, out: Tensor, adds: bool) -> bool:
        (rows, inner), outs = x.shape, len(weight)
        tensors = (weight, x, out)
        if any(not t.is_contiguous() or t.data_ptr() % _ALIGNMENT for t in tensors):
            return False
        if any(t.dtype != torch.bfloat16 for t in tensors) or out.shape != (rows, outs):
            return False
        plan = self._plan(_Product(rows, outs, inner, adds))
        if plan is None:
            return False
        one, workspace = c_float(1.0), c_void_p(self._workspace.data_ptr())
        written = (c_void_p(out.data_ptr()), plan.out)
        self._call(
            "cublasLtMatmul",
            self._handle,
            plan.desc,
            byref(one),
            c_void_p(weight.data_ptr()),
            plan.weight,
            c_void_p(x.data_ptr()),
            plan.x,
            byref(plan.beta),
            *written,  # what it adds to
            *written,
            byref(plan.algorithm),
            workspace,
            c_size_t(_WORKSPACE),
            c_void_p(torch.cuda.current_stream(self._device).cuda_stream),
        )
        return True

    def _plan(self, product: _Product) -> _Plan | None:
        if product not in self._plans:
            wanted = _CHOSEN.get((product.outs, product.inner, product.adds))
            large = product.rows >= _LEAST_ROWS
            self._plans[product] = self._made_plan(product, wanted) if wanted and large else None
        return self._plans[product]

    def _made_plan(self, product: _Product, wanted: tuple[int, int]) -> _Plan | None:
        """Plan out^T [outs, rows] = (W^T)^T x^T: the matrices of cuBLAS are columns."""
        desc = self._create("cublasLtMatmulDesc", c_int32(_COMPUTE_32F), c_int32(_R_32F))
        self._set("cublasLtMatmulDesc", desc, _DESC_TRANSA, c_int32(1))
        weight = self._layout(product.inner, product.outs)
        x = self._layout(product.inner, product.rows)
        out = self._layout(product.outs, product.rows)
        kind, workspace = "cublasLtMatmulPreference", c_size_t(_WORKSPACE)
        preference = self._create(kind)
        self._set(kind, preference, _PREFERENCE_WORKSPACE, workspace)
        offers, count = (_Offer * _OFFERED)(), c_int32(0)
        asked = (desc, weight, x, out, out, preference, c_int32(_OFFERED))
        self._call("cublasLtMatmulAlgoGetHeuristic", self._handle, *asked, offers, byref(count))
        for offer in offers[: count.value]:
            found = (
                self._config(offer.algorithm, _ALGO_TILE_ID, c_uint32(0)),
                self._config(offer.algorithm, _ALGO_CLUSTER_ID, c_uint16(0)),
            )
            split = self._config(offer.algorithm, _ALGO_SPLITK, c_int32(0))
            if found == wanted and split <= 1 and offer.status == 0:
                beta = c_float(1.0 if product.adds else 0.0)
                return _Plan(desc, weight, x, out, beta, offer.algorithm)
        return None

    def _layout(self, rows: int, columns: int) -> c_void_p:
        sizes = (c_uint64(rows), c_uint64(columns), c_int64(rows))
        return self._create("cublasLtMatrixLayout", c_int32(_R_16BF), *sizes)

    def _config(
        self, algorithm: _Algorithm, name: int, value: c_uint32 | c_uint16 | c_int32
    ) -> int:
        written = c_size_t(0)
        place = (byref(value), c_size_t(ctypes.sizeof(value)), byref(written))
        self._call("cublasLtMatmulAlgoConfigGetAttribute", byref(algorithm), c_int32(name), *place)
        return value.value

    def _create(self, kind: str, *arguments: object) -> c_void_p:
        """Create a cuBLAS object that lives as long as this one."""
        made = c_void_p()
        self._call(f"{kind}Create", byref(made), *arguments)
        self._made.append((f"{kind}Destroy", made))
        return made

    def _set(self, kind: str, of: c_void_p, name: int, value: c_int32 | c_size_t) -> None:
        size = c_size_t(ctypes.sizeof(value))
        self._call(f"{kind}SetAttribute", of, c_int32(name), byref(value), size)

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != 0:
            raise DeviceError(
                f"{self._device}: {function} failed with status {status} of cuBLAS "
                f"(CUDA {torch.version.cuda}); see its manual"
            )


def _open() -> ctypes.CDLL:
    """Open the library that torch itself uses."""
    name = f"libcublasLt.so.{(torch.version.cuda or '').split('.')[0]}"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise DeviceError(f"{name}, which torch uses, cannot be opened: {error}") from None


def _destroy(library: ctypes.CDLL, made: list[tuple[str, c_void_p]]) -> None:
    while made:
        destroy, pointer = made.pop()
        getattr(library, destroy)(pointer)
