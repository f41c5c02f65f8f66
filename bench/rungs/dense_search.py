"""The rungs L0 to L3: one decoder body, whose self-attention cache is dense.

It generates without constraints, as `grace.model.definition.beam_search` does over a catalogue of
every SID. Beams move by copying their rows of the cache. cuBLAS computes the matrix products; a GPU
compiles what is between them, `Pieces`. All of it can be recorded as a graph: nothing looks at
values on the host.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from grace.bench.rungs.attention import DenseCache, append, attend_sdpa, cross_sdpa, spread_to_rows
from grace.bench.rungs.coalesced_triton import Tile, attend_coalesced
from grace.configs.errors import InputError
from grace.configs.generation import BeamProfile
from grace.kernels.row_stable import rms_norm_reference as rms_norm
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext


@dataclass(frozen=True, slots=True)
class Rung:
    """
    spreads  whether cross-attention reads keys and values per beam row, [rows, H, T, d], instead of
             per request, [B, H, T, d]; they are then made once for all steps of equal beams
    fused    whether the paper's kernel also writes the cache
    tiles    of the paper's kernel at each step; without them, SDPA attends
    """

    name: str
    spreads: bool = False
    fused: bool = False
    tiles: tuple[Tile, ...] = ()

    def attend(self, qkv: Tensor, cache: DenseCache, step: int, scale: float) -> Tensor:
        """Add the step's keys and values to the cache, and attend."""
        fused = self.fused and bool(self.tiles)
        if not fused:
            append(qkv, cache, step)
        if not self.tiles:
            return attend_sdpa(qkv, cache, step, scale)
        return attend_coalesced(qkv, cache, step, scale, self.tiles[step], fused=fused)


L0, L1, L2, L3 = Rung("L0", spreads=True), Rung("L1"), Rung("L2"), Rung("L3", fused=True)
DENSE_RUNGS = {rung.name: rung for rung in (L0, L1, L2, L3)}


class RungDecoder(NamedTuple):
    """A decoder's weights in the type that the rung computes in. `plain` has the same shapes.

    layers  weights named and shaped as in model/definition/decoder.py
    heads   [vocab_sizes[t], d] per step
    """

    plain: Decoder
    start: Tensor
    embed: Tensor
    layers: tuple[SimpleNamespace, ...]
    final_norm: Tensor
    heads: tuple[Tensor, ...]

    @staticmethod
    def of(decoder: Decoder, device: torch.device, dtype: torch.dtype) -> "RungDecoder":
        if bool(decoder.bias.any()) or any(decoder.extra) or decoder.spec.ffn != "relu":
            raise InputError(
                "the rungs measure the paper's decoder: give one of ReLU, without a relative bias, "
                "which FlashAttention does not take, and without extra rows of the heads"
            )
        state = {name: x.to(device, dtype) for name, x in decoder.state_dict().items()}
        layers: list[dict[str, Tensor]] = [{} for _ in decoder.layers]
        for name, weight in state.items():
            if name.startswith("layers."):
                _, place, own = name.split(".")
                layers[int(place)][own] = weight
        return RungDecoder(
            decoder,
            state["start"],
            state["embed"],
            tuple(SimpleNamespace(**layer) for layer in layers),
            state["final_norm"],
            tuple(
                rows[:size] for rows, size in zip(state["head"], decoder.vocab_sizes, strict=True)
            ),
        )


class DenseGenerated(NamedTuple):
    """Best first; dead ones score -inf and mean nothing.

    sids int32 [B, num_sids, L], scores float32 [B, num_sids]
    """

    sids: Tensor
    scores: Tensor


class Pieces(NamedTuple):
    """The operations between the matrix products.

    norm      (x, gain, eps) -> normed x
    add_norm  (x, y, gain, eps) -> x + y, and that normed
    activate  the feed-forward network's activation
    score     (logits, beam scores [rows]) -> float32 [rows, vocabulary]
    """

    norm: Callable[[Tensor, Tensor, float], Tensor]
    add_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    activate: Callable[[Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Tensor]


def _add_norm(x: Tensor, y: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    added = x + y
    return added, rms_norm(added, gain, eps)


def _score(logits: Tensor, scores: Tensor) -> Tensor:
    return logits.float().log_softmax(dim=-1) + scores[:, None]


PLAIN = Pieces(rms_norm, _add_norm, torch.relu, _score)


@functools.cache
def compiled_pieces() -> Pieces:
    """Return the same pieces, each compiled to one kernel."""
    return Pieces(
        *(
            torch.compile(piece, dynamic=False, mode="max-autotune-no-cudagraphs")  # type: ignore[arg-type]
            for piece in PLAIN
        )
    )


def require_full_contexts(context: UserContext) -> None:
    """FlashAttention takes no mask of keys; a user context of the paper's encoder has none."""
    if not bool(context.mask.all()):
        raise InputError("the rungs measure full user contexts: give a mask without False")


@torch.inference_mode()
def dense_search(
    decoder: RungDecoder, states: Tensor, profile: BeamProfile, rung: Rung, pieces: Pieces = PLAIN
) -> DenseGenerated:
    """states [B, T_ctx, d_context], all of them keys (`require_full_contexts`)."""
    spec, batch, length = decoder.plain.spec, len(states), len(decoder.heads)
    shape = (length, batch * max(profile.beams), spec.heads, spec.d_head)
    here, there = (
        [DenseCache(states.new_empty(shape), states.new_empty(shape)) for _ in decoder.layers]
        for _ in range(2)
    )

    def by_head(x: Tensor) -> Tensor:
        """[B, T, H * d] -> [B, H, T, d]"""
        return x.view(batch, -1, spec.heads, spec.d_head).transpose(1, 2).contiguous()

    per_request = [
        (by_head(linear(states, layer.cross_k)), by_head(linear(states, layer.cross_v)))
        for layer in decoder.layers
    ]
    cross = per_request
    scores = torch.zeros((batch, 1), device=states.device)
    sids = torch.zeros((batch, length), dtype=torch.int32, device=states.device)
    for step, width in enumerate(profile.beams):
        if rung.spreads and len(cross[0][0]) != batch * width:
            cross = []  # frees gigabytes before as many are made
            for k, v in per_request:
                cross.append((spread_to_rows(k, width), spread_to_rows(v, width)))
        logits = _step(decoder, step, sids, here, cross, rung, pieces)
        totals = pieces.score(logits, scores.flatten())
        last = step + 1 == length
        parents, tokens, scores = _best(totals, batch, profile.kept_after(step), ordered=last)
        sids = sids[parents]
        sids[:, step] = tokens
        if not last:
            _move(here, there, parents, batch * width, step)
            here, there = there, here
    return DenseGenerated(sids.view(batch, -1, length), scores)


def _step(
    decoder: RungDecoder,
    step: int,
    sids: Tensor,
    caches: list[DenseCache],
    cross: list[tuple[Tensor, Tensor]],
    rung: Rung,
    pieces: Pieces,
) -> Tensor:
    """-> logits [rows, vocabulary]"""
    spec, scale, rows = decoder.plain.spec, decoder.plain.scale, len(sids)
    eps, layers = spec.norm_eps, decoder.layers
    if step == 0:
        x = decoder.start.expand(rows, -1).contiguous()
    else:
        x = decoder.embed[step - 1][sids[:, step - 1]]
    normed = pieces.norm(x, layers[0].self_norm, eps)
    gains = [*(layer.self_norm for layer in layers[1:]), decoder.final_norm]
    for layer, cache, kv, gain in zip(layers, caches, cross, gains, strict=True):
        qkv = linear(normed, layer.qkv).view(rows, 3, spec.heads, spec.d_head)
        attended = rung.attend(qkv, cache, step, scale)
        x, normed = pieces.add_norm(x, linear(attended, layer.self_out), layer.cross_norm, eps)
        queries = linear(normed, layer.cross_q)
        attended = cross_sdpa(queries, *kv, scale)
        x, normed = pieces.add_norm(x, linear(attended, layer.cross_out), layer.ffn_norm, eps)
        hidden = pieces.activate(linear(normed, layer.ffn_in))
        x, normed = pieces.add_norm(x, linear(hidden, layer.ffn_out), gain, eps)
    return linear(normed, decoder.heads[step])


def _best(totals: Tensor, batch: int, kept: int, *, ordered: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Flat parent rows [B * kept], their tokens [B * kept], scores [B, kept]."""
    vocabulary = totals.shape[1]
    flat = totals.view(batch, -1)
    there = min(kept, flat.shape[1])
    scores, places = flat.topk(there, dim=1, sorted=ordered)
    if there < kept:  # the rest is dead: it continues the request's first row at -inf
        scores = pad(scores, (0, kept - there), value=-torch.inf)
        places = pad(places, (0, kept - there))
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
