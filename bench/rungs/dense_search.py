"""The rungs L0 to L3: one decoder body, whose self-attention cache is dense.

It generates without constraints, as `grace.model.definition.beam_search` does over a catalogue of
every SID. Beams move by copying their rows of the cache. cuBLAS computes the matrix products; a GPU
compiles what is between them, `Pieces`. All of it can be recorded as a graph: nothing looks at
values on the host.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from grace.bench.rungs.attention import (
    DenseCache,
    attend_sdpa,
    beams_as_queries,
    beams_as_rows,
    spread_to_rows,
)
from grace.bench.rungs.coalesced_triton import Tile, attend_coalesced, attend_fused
from grace.configs.errors import InputError
from grace.configs.generation import BeamProfile
from grace.kernels.encoder.norm_and_gates import rms_norm_reference as rms_norm
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext
from grace.model.definition.spec import DecoderSpec


class DenseSelfAttention(Protocol):
    """Add the step's keys and values to the cache, and attend."""

    def __call__(
        self, qkv: Tensor, cache: DenseCache, step: int, bias: Tensor | None, scale: float
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Rung:
    """
    cross_attention  (queries [rows, H * d], keys, values, scale) -> [rows, H * d]
    spreads          whether it reads keys and values per beam row, [rows, H, T, d], instead of per
                     request, [B, H, T, d]; they are then made once for all steps of equal beams
    """

    name: str
    self_attention: DenseSelfAttention
    cross_attention: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    spreads: bool


L0 = Rung("L0", attend_sdpa, beams_as_rows, spreads=True)
L1 = Rung("L1", attend_sdpa, beams_as_queries, spreads=False)
L2 = replace(L1, name="L2", self_attention=attend_coalesced)
L3 = replace(L1, name="L3", self_attention=attend_fused)
DENSE_RUNGS = (L0, L1, L2, L3)


def tiled(rung: Rung, tiles: Sequence[Tile]) -> Rung:
    """Return L2 or L3 with its kernel's tile of each step; L0 and L1 have no tiles."""
    kernel = {L2.name: attend_coalesced, L3.name: attend_fused}.get(rung.name)
    if kernel is None:
        return rung
    by_step = tuple(partial(kernel, tile=tile) for tile in tiles)

    def attend(
        qkv: Tensor, cache: DenseCache, step: int, bias: Tensor | None, scale: float
    ) -> Tensor:
        return by_step[step](qkv, cache, step, bias, scale)

    return replace(rung, self_attention=attend)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's weights, named and shaped as in model/definition/decoder.py."""

    self_norm: Tensor
    qkv: Tensor
    self_out: Tensor
    cross_norm: Tensor
    cross_q: Tensor
    cross_k: Tensor
    cross_v: Tensor
    cross_out: Tensor
    ffn_norm: Tensor
    ffn_in: Tensor
    ffn_out: Tensor


@dataclass(frozen=True, slots=True)
class RungWeights:
    """A decoder's weights, unchanged, in the type that is computed in.

    heads  [vocab_sizes[t] + extra rows, d] per step
    bias   [H, L], or None where it is zero: FlashAttention takes none
    """

    spec: DecoderSpec
    vocab_sizes: tuple[int, ...]
    scale: float
    start: Tensor
    embed: Tensor
    heads: tuple[Tensor, ...]
    bias: Tensor | None
    final_norm: Tensor
    layers: tuple[LayerWeights, ...]

    @staticmethod
    def of(decoder: Decoder, device: torch.device, dtype: torch.dtype) -> "RungWeights":
        state = {
            name: weight.detach().to(device, dtype)
            for name, weight in decoder.state_dict(keep_vars=True).items()
        }
        names = [field.name for field in fields(LayerWeights)]
        return RungWeights(
            spec=decoder.spec,
            vocab_sizes=decoder.vocab_sizes,
            scale=decoder.scale,
            start=state["start"],
            embed=state["embed"],
            heads=tuple(_head(decoder, state["head"], t) for t in range(decoder.sid_length)),
            bias=state["bias"] if bool(decoder.bias.any()) else None,
            final_norm=state["final_norm"],
            layers=tuple(
                LayerWeights(**{name: state[f"layers.{i}.{name}"] for name in names})
                for i in range(decoder.spec.layers)
            ),
        )


def _head(decoder: Decoder, head: Tensor, step: int) -> Tensor:
    """The rows of the step's tokens, then those that only enter its normaliser."""
    widest, extra = max(decoder.vocab_sizes), decoder.extra[step]
    rows = head[step]
    return torch.cat([rows[: decoder.vocab_sizes[step]], rows[widest : widest + extra]])


@dataclass(frozen=True, slots=True)
class DenseGenerated:
    """Best first; dead ones score -inf and mean nothing.

    sids int32 [B, num_sids, L], scores float32 [B, num_sids]
    """

    sids: Tensor
    scores: Tensor


@dataclass(frozen=True, slots=True)
class Pieces:
    """The operations between the matrix products.

    norm      (x, gain, eps) -> normed x
    add_norm  (x, y, gain, eps) -> x + y, and that normed
    activate  (hidden, ffn) -> the feed-forward network's activation
    score     (logits, beam scores [rows], vocabulary) -> float32 [rows, vocabulary]
    """

    norm: Callable[[Tensor, Tensor, float], Tensor]
    add_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    activate: Callable[[Tensor, str], Tensor]
    score: Callable[[Tensor, Tensor, int], Tensor]


def _add_norm(x: Tensor, y: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    added = x + y
    return added, rms_norm(added, gain, eps)


def _activate(hidden: Tensor, ffn: str) -> Tensor:
    if ffn == "relu":
        return torch.relu(hidden)
    gate, value = hidden.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate="tanh") * value


def _score(logits: Tensor, scores: Tensor, vocabulary: int) -> Tensor:
    return logits.float().log_softmax(dim=-1)[:, :vocabulary] + scores[:, None]


PLAIN = Pieces(rms_norm, _add_norm, _activate, _score)


@functools.cache
def compiled_pieces() -> Pieces:
    """Return the same pieces, each compiled to one kernel."""

    def compiled(piece: Callable[..., object]) -> Callable[..., object]:
        return torch.compile(piece, dynamic=False, mode="max-autotune-no-cudagraphs")

    return Pieces(*(compiled(piece) for piece in (rms_norm, _add_norm, _activate, _score)))  # type: ignore[arg-type]


def require_full_contexts(context: UserContext) -> None:
    """FlashAttention takes no mask of keys; a user context of the paper's encoder has none."""
    if not bool(context.mask.all()):
        raise InputError("the rungs measure full user contexts: give a mask without False")


@torch.inference_mode()
def dense_search(
    weights: RungWeights,
    states: Tensor,
    profile: BeamProfile,
    rung: Rung,
    pieces: Pieces = PLAIN,
) -> DenseGenerated:
    """states [B, T_ctx, d_context], all of them keys (`require_full_contexts`)."""
    batch, length = len(states), len(weights.vocab_sizes)
    most = batch * max(profile.beams)
    here, there = (_new_caches(weights, states, most) for _ in range(2))
    keys = [_by_head(weights, linear(states, layer.cross_k)) for layer in weights.layers]
    values = [_by_head(weights, linear(states, layer.cross_v)) for layer in weights.layers]
    per_request = list(zip(keys, values, strict=True))
    cross = per_request
    scores = torch.zeros((batch, 1), device=states.device)
    sids = torch.zeros((batch, length), dtype=torch.int32, device=states.device)
    for step, width in enumerate(profile.beams):
        if rung.spreads and len(cross[0][0]) != batch * width:
            cross = []  # frees gigabytes before as many are made
            for k, v in per_request:
                cross.append((spread_to_rows(k, width), spread_to_rows(v, width)))
        logits = _step(weights, step, sids, here, cross, rung, pieces)
        totals = pieces.score(logits, scores.flatten(), weights.vocab_sizes[step])
        last = step + 1 == length
        parents, tokens, scores = _best(totals, batch, profile.kept_after(step), ordered=last)
        sids = sids[parents]
        sids[:, step] = tokens
        if not last:
            _move(here, there, parents, batch * width, step)
            here, there = there, here
    return DenseGenerated(sids.view(batch, -1, length), scores)


def _step(
    weights: RungWeights,
    step: int,
    sids: Tensor,
    caches: list[DenseCache],
    cross: list[tuple[Tensor, Tensor]],
    rung: Rung,
    pieces: Pieces,
) -> Tensor:
    """-> logits [rows, vocabulary + extra rows]"""
    spec, eps, rows = weights.spec, weights.spec.norm_eps, len(sids)
    if step == 0:
        x = weights.start.expand(rows, -1).contiguous()
    else:
        x = weights.embed[step - 1][sids[:, step - 1]]
    normed = pieces.norm(x, weights.layers[0].self_norm, eps)
    for place, (layer, cache) in enumerate(zip(weights.layers, caches, strict=True)):
        qkv = linear(normed, layer.qkv).view(rows, 3, spec.heads, spec.d_head)
        attended = rung.self_attention(qkv, cache, step, weights.bias, weights.scale)
        x, normed = pieces.add_norm(x, linear(attended, layer.self_out), layer.cross_norm, eps)
        queries = linear(normed, layer.cross_q)
        attended = rung.cross_attention(queries, *cross[place], weights.scale)
        x, normed = pieces.add_norm(x, linear(attended, layer.cross_out), layer.ffn_norm, eps)
        hidden = pieces.activate(linear(normed, layer.ffn_in), spec.ffn)
        gain = _next_gain(weights, place)
        x, normed = pieces.add_norm(x, linear(hidden, layer.ffn_out), gain, eps)
    return linear(normed, weights.heads[step])


def _next_gain(weights: RungWeights, place: int) -> Tensor:
    following: tuple[LayerWeights, ...] = weights.layers[place + 1 :]
    return following[0].self_norm if following else weights.final_norm


def _best(totals: Tensor, batch: int, kept: int, *, ordered: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Flat parent rows [B * kept], their tokens [B * kept], scores [B, kept]."""
    vocabulary = totals.shape[1]
    flat = totals.view(batch, -1)
    there = min(kept, flat.shape[1])
    scores, places = flat.topk(there, dim=1, sorted=ordered)
    if there < kept:  # the rest is dead: it continues the request's first row at -inf
        scores = torch.nn.functional.pad(scores, (0, kept - there), value=-torch.inf)
        places = torch.nn.functional.pad(places, (0, kept - there))
    first_rows = torch.arange(batch, device=totals.device) * (flat.shape[1] // vocabulary)
    parents = places // vocabulary + first_rows[:, None]
    return parents.flatten(), (places % vocabulary).flatten().int(), scores


def _move(
    here: list[DenseCache], there: list[DenseCache], parents: Tensor, rows: int, step: int
) -> None:
    """Give every new beam row its parent's keys and values of positions 0..step."""
    for old, new in zip(here, there, strict=True):
        for source, target in ((old.keys, new.keys), (old.values, new.values)):
            for position in range(step + 1):
                of_rows = source[position, :rows].flatten(1)
                onto = target[position, : len(parents)].flatten(1)
                torch.index_select(of_rows, 0, parents, out=onto)


def _new_caches(weights: RungWeights, like: Tensor, rows: int) -> list[DenseCache]:
    shape = (len(weights.vocab_sizes), rows, weights.spec.heads, weights.spec.d_head)
    return [DenseCache(like.new_empty(shape), like.new_empty(shape)) for _ in weights.layers]


def _by_head(weights: RungWeights, x: Tensor) -> Tensor:
    """[B, T, H * d] -> [B, H, T, d]"""
    batch, tokens, _ = x.shape
    by_head = x.view(batch, tokens, weights.spec.heads, weights.spec.d_head)
    return by_head.transpose(1, 2).contiguous()
