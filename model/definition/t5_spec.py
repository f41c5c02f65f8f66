"""The rest of model.yaml for an encoder and a decoder of the T5 family:

encoder: {interformer: {blocks: 3, d_model: 512, heads: 8, d_ff: 1024, context_tokens: 128}}
decoder: {layers: 3, d_model: 2048, heads: 16, d_head: 128, d_ff: 512}
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from grace.configs.options import Option
from grace.configs.sections import Section
from grace.model.definition.spec import Depth, Epsilon, ModelSpec, Packing, Size

MAX_HISTORY = 1 << 14  # events: in a t5 history, every token attends to every other

Ffn = Literal["relu", "gated_gelu"]


@dataclass(frozen=True, slots=True)
class T5EncoderSpec(Section):
    """TIGER's encoder: it reads the history's SIDs as tokens of one vocabulary of `num_tokens`.

    Value v at SID position t is token token_offsets[t] + v. `prefix_tokens` come before the
    history, `eos_token` after it.
    """

    layers: Depth
    d_model: Size
    heads: Size
    d_head: Size
    d_ff: Size
    history: str
    num_tokens: Size
    token_offsets: tuple[int, ...]
    prefix_tokens: tuple[int, ...] = ()
    eos_token: int | None = None
    ffn: Ffn = "relu"
    scale_scores: bool = False
    relative_buckets: Annotated[int, Option(least=4)] = 32  # half per direction, half of it exact
    relative_max_distance: Size = 128
    norm_eps: Epsilon = 1e-6

    def faults(self) -> Iterable[str]:
        if self.relative_max_distance <= self.relative_buckets // 4:
            yield (
                f"relative_max_distance: must be above {self.relative_buckets // 4} with "
                f"{self.relative_buckets} relative_buckets, got {self.relative_max_distance}"
            )


@dataclass(frozen=True, slots=True)
class InterFormerSpec(Section):
    """The paper's encoder: non-sequence tokens and event sequences that exchange summaries."""

    blocks: Depth
    d_model: Size
    heads: Size
    d_ff: Size
    context_tokens: Size
    non_sequence_tokens: Size = 32
    summary_tokens: Size = 4
    bag_dim: Size = 128
    norm_eps: Epsilon = 1e-6

    def faults(self) -> Iterable[str]:
        if self.d_model % self.heads:
            yield f"d_model {self.d_model} is not a multiple of {self.heads} heads"


@dataclass(frozen=True, slots=True)
class EncoderSpec(Section):
    t5: T5EncoderSpec | None = None
    interformer: InterFormerSpec | None = None

    def faults(self) -> Iterable[str]:
        if (self.t5 is None) == (self.interformer is None):
            yield "exactly one of t5, interformer"


@dataclass(frozen=True, slots=True)
class DecoderSpec(Section):
    """A decoder of the T5 family. A step's `extra_head_rows` only enter its normaliser."""

    layers: Depth
    d_model: Size
    heads: Size
    d_head: Size
    d_ff: Size
    ffn: Ffn = "relu"
    scale_scores: bool = False
    extra_head_rows: tuple[int, ...] = ()  # none
    norm_eps: Epsilon = 1e-6


@dataclass(frozen=True)
class EncoderDecoderSpec(ModelSpec):
    encoder: EncoderSpec
    decoder: DecoderSpec

    def faults(self) -> Iterable[str]:
        yield from super().faults()
        sizes, extra = self.vocab_sizes, self.decoder.extra_head_rows
        if extra and (len(extra) != len(sizes) or min(extra) < 0):
            yield (
                f"decoder.extra_head_rows: expected {len(sizes)} numbers, 0 or more, "
                f"got {list(extra)}"
            )
        if not self.inputs:
            yield "inputs: declare at least one, as name: {kind: ...}"
        if self.encoder.t5 is not None:
            yield from _faults_of_t5(self, self.encoder.t5)

    @property
    def context_tokens(self) -> int:
        """T_ctx, the same for every request. A key mask marks the tokens that a request has."""
        if self.encoder.interformer is not None:
            return self.encoder.interformer.context_tokens
        t5 = self.encoder.t5
        assert t5 is not None
        events = self.sequences[t5.history].max_length
        return len(t5.prefix_tokens) + events * self.sid_length + (t5.eos_token is not None)

    @property
    def encoder_kind(self) -> str:
        return "interformer" if self.encoder.t5 is None else "t5"

    @cached_property
    def packing(self) -> Packing | None:
        t5 = self.encoder.t5
        if t5 is None:
            return None
        begins = zip(t5.token_offsets, self.vocab_sizes, strict=True)
        return Packing(
            history=t5.history,
            most_events=self.sequences[t5.history].max_length,
            codes=tuple(tuple(range(begin, begin + size)) for begin, size in begins),
            num_tokens=t5.num_tokens,
            most_tokens=self.context_tokens,
            prefix=t5.prefix_tokens,
            suffix=() if t5.eos_token is None else (t5.eos_token,),
        )

    @property
    def context_dim(self) -> int:
        encoder = self.encoder.t5 or self.encoder.interformer
        assert encoder is not None
        return encoder.d_model

    def to_json(self) -> dict[str, Any]:
        values = super().to_json()
        values["encoder"] = {name: value for name, value in values["encoder"].items() if value}
        return values


def _faults_of_t5(spec: EncoderDecoderSpec, t5: T5EncoderSpec) -> Iterable[str]:
    history = spec.sequences.get(t5.history)
    if history is None:
        yield f"encoder.t5.history: {t5.history!r} is not an input of kind sequence"
    elif history.max_length > MAX_HISTORY:
        yield (
            f"inputs.{t5.history}.max_length: at most {MAX_HISTORY} for t5, whose every token is "
            f"attended to, got {history.max_length}"
        )
    elif history.side:
        yield (
            f"inputs.{t5.history}.side: t5 reads the SIDs of its history only; remove it, or use "
            "interformer"
        )
    for other in sorted(set(spec.inputs) - {t5.history}):
        yield f"inputs.{other}: t5 reads its history only; remove it, or use interformer"
    if len(t5.token_offsets) != spec.sid_length:
        yield f"encoder.t5.token_offsets: expected {spec.sid_length}, got {len(t5.token_offsets)}"
    last = [o + v - 1 for o, v in zip(t5.token_offsets, spec.vocab_sizes, strict=True)]
    special = [t for t in (*t5.prefix_tokens, t5.eos_token) if t is not None]
    lowest, largest = min((*t5.token_offsets, *special)), max((*last, *special))
    if lowest < 0 or largest >= t5.num_tokens:
        yield (
            f"encoder.t5.num_tokens: {t5.num_tokens}, but its tokens are {lowest} to {largest}; "
            f"set it to {largest + 1}, or correct token_offsets, prefix_tokens or eos_token"
        )
