"""The rungs L0 to L3: one decoder body, whose self-attention cache is dense.

It generates without constraints, as `grace.model.definition.beam_search` does over a catalogue of
every SID. Beams move by copying their rows of the cache. cuBLAS computes the matrix products; a GPU
compiles what is between them, `Pieces`. All of it can be recorded as a graph: nothing looks at
values on the host.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, pad

from grace.bench.rungs.attention import (
    DenseCache,
    attend_sdpa,
    cross_sdpa,
    spread_to_rows,
)
from grace.bench.rungs.coalesced_triton import Tile, attend_coalesced, attend_fused
from grace.configs.errors import InputError
from grace.configs.generation import BeamProfile
from grace.kernels.encoder.norm_and_gates import rms_norm_reference as rms_norm
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext

DenseSelfAttention: TypeAlias = Callable[[Tensor, DenseCache, int, Tensor | None, float], Tensor]
"""(qkv, cache, step, bias, scale): add the step's keys and values to the cache, and attend."""


@dataclass(frozen=True, slots=True)
class Rung:
    """
    spreads  whether cross-attention reads keys and values per beam row, [rows, H, T, d], instead of
             per request, [B, H, T, d]; they are then made once for all steps of equal beams
    """

    name: str
    self_attention: DenseSelfAttention
    spreads: bool = False

    def tiled(self, tiles: Sequence[Tile]) -> "Rung":
        """Return the rung L2 or L3 with a kernel tile for each step."""
        kernel = {"L2": attend_coalesced, "L3": attend_fused}[self.name]
        return replace(
            self,
            self_attention=lambda qkv, cache, step, bias, scale: kernel(
                qkv, cache, step, bias, scale, tiles[step]
            ),
        )


L0 = Rung("L0", attend_sdpa, spreads=True)
L1 = Rung("L1", attend_sdpa)
L2 = Rung("L2", attend_coalesced)
L3 = Rung("L3", attend_fused)
DENSE_RUNGS = {rung.name: rung for rung in (L0, L1, L2, L3)}


class RungDecoder(NamedTuple):
    """A decoder's weights in the type that the rung computes in. `plain` has the same shapes.

    layers  weights named and shaped as in model/definition/decoder.py
    heads   [vocab_sizes[t] + extra rows, d] per step
    bias    [H, L], or None if it is zero: FlashAttention takes no bias
    """

    plain: Decoder
    start: Tensor
    embed: Tensor
    layers: tuple[SimpleNamespace, ...]
    final_norm: Tensor
    heads: tuple[Tensor, ...]
    bias: Tensor | None

    @staticmethod
    def of(decoder: Decoder, device: torch.device, dtype: torch.dtype) -> "RungDecoder":
        state = {name: x.to(device, dtype) for name, x in decoder.state_dict().items()}
        layers: list[dict[str, Tensor]] = [{} for _ in decoder.layers]
        for name, weight in state.items():
            if name.startswith("layers."):
                _, place, own = name.split(".")
                layers[int(place)][own] = weight
        widest = max(decoder.vocab_sizes)
        heads = (
            torch.cat([rows[:vocabulary], rows[widest : widest + extra]])
            for rows, vocabulary, extra in zip(
                state["head"], decoder.vocab_sizes, decoder.extra, strict=True
            )
        )
        return RungDecoder(
            decoder,
            state["start"],
            state["embed"],
            tuple(SimpleNamespace(**layer) for layer in layers),
            state["final_norm"],
            tuple(heads),
            state["bias"] if bool(decoder.bias.any()) else None,
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
    return gelu(gate, approximate="tanh") * value


def _score(logits: Tensor, scores: Tensor, vocabulary: int) -> Tensor:
    return logits.float().log_softmax(dim=-1)[:, :vocabulary] + scores[:, None]


PLAIN = Pieces(rms_norm, _add_norm, _activate, _score)


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
    decoder: RungDecoder,
    states: Tensor,
    profile: BeamProfile,
    rung: Rung,
    pieces: Pieces = PLAIN,
) -> DenseGenerated:
    """states [B, T_ctx, d_context], all of them keys (`require_full_contexts`)."""
    spec, vocab_sizes = decoder.plain.spec, decoder.plain.vocab_sizes
    batch, length = len(states), len(vocab_sizes)
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
        totals = pieces.score(logits, scores.flatten(), vocab_sizes[step])
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
    """-> logits [rows, vocabulary + extra rows]"""
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
        attended = rung.self_attention(qkv, cache, step, decoder.bias, scale)
        x, normed = pieces.add_norm(x, linear(attended, layer.self_out), layer.cross_norm, eps)
        queries = linear(normed, layer.cross_q)
        attended = cross_sdpa(queries, *kv, scale)
        x, normed = pieces.add_norm(x, linear(attended, layer.cross_out), layer.ffn_norm, eps)
        hidden = pieces.activate(linear(normed, layer.ffn_in), spec.ffn)
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
