"""The rest of model.yaml for a causal language model, such as Qwen3, Qwen2.5 or LLaMA:

decoder: {causal: {layers: 28, d_model: 2048, heads: 16, kv_heads: 8, d_head: 128, d_ff: 6144,
                   num_tokens: 176384, qk_norm: true, tied_head: true}}
sid_tokens: [{first: 151669}, {first: 159861}, {first: 168053}]
prompt: {prefix: [151644], event: {before: [176245]}, history: clicks, suffix: [151645]}

Tokens are ids of the model's vocabulary. The file has no text, and GRACE has no tokenizer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from grace.configs.options import Normalizer, Option
from grace.configs.sections import Section
from grace.model.definition.spec import (
    Depth,
    Epsilon,
    InputSpec,
    ModelSpec,
    Packing,
    SequenceInput,
    Size,
)

MAX_PROMPT = 1 << 15  # tokens: each one attends to all before it
PROMPT = "prompt"
"""The name in a request's `features.tokens`."""


@dataclass(frozen=True, slots=True)
class CausalSpec(Section):
    """Layers of the LLaMA kind. `qk_norm` makes them Qwen3's, `qkv_bias` Qwen2's."""

    layers: Depth
    d_model: Size
    heads: Size
    kv_heads: Size
    d_head: Size
    d_ff: Size
    num_tokens: Size
    rope_theta: Annotated[float, Option(least=1)] = 10_000.0
    norm_eps: Epsilon = 1e-6
    qk_norm: bool = False
    qkv_bias: bool = False
    tied_head: bool = False

    def faults(self) -> Iterable[str]:
        if self.heads % self.kv_heads:
            yield f"heads: {self.heads}, not a multiple of {self.kv_heads} kv_heads"
        if self.d_head % 2:
            yield f"d_head: must be even, since positions turn pairs of numbers, got {self.d_head}"

    @property
    def ffn(self) -> Literal["gated_silu"]:
        return "gated_silu"

    @property
    def qkv_heads(self) -> int:
        """The heads of queries, keys and values together."""
        return self.heads + 2 * self.kv_heads

    @property
    def layer_weights(self) -> int:
        """The numbers in a layer's matrices, and so the products of a token with them."""
        return self.d_model * ((self.qkv_heads + self.heads) * self.d_head + 3 * self.d_ff)


@dataclass(frozen=True, slots=True)
class CausalDecoderSpec(Section):
    causal: CausalSpec


@dataclass(frozen=True, slots=True)
class SidTokens(Section):
    """The tokens of one SID position: `first` and those that follow it, or the id of each code."""

    first: int | None = None
    ids: tuple[int, ...] = ()

    def faults(self) -> Iterable[str]:
        if (self.first is None) == (not self.ids):
            yield "give exactly one of first, ids"

    def of(self, codes: int) -> tuple[int, ...]:
        """Return the token of each code."""
        return self.ids if self.first is None else tuple(range(self.first, self.first + codes))


@dataclass(frozen=True, slots=True)
class EventTokens(Section):
    """The tokens around the SID of each event."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptSpec(Section):
    """How a request becomes tokens: prefix, then the events of `history`, oldest first, suffix."""

    prefix: tuple[int, ...] = ()
    event: EventTokens = field(default_factory=EventTokens)
    history: str | None = None
    suffix: tuple[int, ...] = ()
    max_tokens: Annotated[int, Option(least=1, most=MAX_PROMPT)] = 4096

    def faults(self) -> Iterable[str]:
        if not self.prefix and not self.suffix:
            yield "prefix: empty, as is suffix: a request without a history needs a token in either"
        if self.fixed_tokens > self.max_tokens:
            yield (
                f"max_tokens: {self.max_tokens}, but prefix and suffix have {self.fixed_tokens}; "
                f"give at least that number"
            )

    @property
    def fixed_tokens(self) -> int:
        return len(self.prefix) + len(self.suffix)


@dataclass(frozen=True, kw_only=True)
class CausalModelSpec(ModelSpec):
    """A step's softmax runs over the tokens that `normalizer` names: `all`, or its level's."""

    decoder: CausalDecoderSpec
    sid_tokens: tuple[SidTokens, ...]
    prompt: PromptSpec
    inputs: dict[str, InputSpec] = field(default_factory=dict)
    normalizer: Normalizer = "all"

    @staticmethod
    def describes(values: object) -> bool:
        """Return whether these values of a model.yaml describe this family."""
        decoder = values.get("decoder") if isinstance(values, Mapping) else None
        return isinstance(decoder, Mapping) and "causal" in decoder

    def faults(self) -> Iterable[str]:
        yield from super().faults()
        if len(self.sid_tokens) != self.sid_length:
            yield f"sid_tokens: expected {self.sid_length} positions, got {len(self.sid_tokens)}"
        pairs = zip(self.tokens_of_codes, self.vocab_sizes, strict=True)
        for place, (ids, codes) in enumerate(pairs):
            if len(ids) != codes:
                yield f"sid_tokens[{place}].ids: expected {codes} tokens, got {len(ids)}"
            if len({*ids}) < len(ids):
                yield f"sid_tokens[{place}].ids: names a token twice; give each code its own"
            yield from self._beyond_vocabulary(f"sid_tokens[{place}]", ids)
        event = self.prompt.event
        fixed = (*self.prompt.prefix, *event.before, *event.after, *self.prompt.suffix)
        yield from self._beyond_vocabulary("prompt", fixed)
        yield from self._faults_of_history()

    def _beyond_vocabulary(self, name: str, ids: tuple[int, ...]) -> Iterable[str]:
        most = self.causal.num_tokens - 1
        for token in ids:
            if not 0 <= token <= most:
                yield f"{name}: token {token}, but the model has 0 to {most} (num_tokens)"

    def _faults_of_history(self) -> Iterable[str]:
        name = self.prompt.history
        for other in sorted(set(self.inputs) - {name}):
            yield f"inputs.{other}: a causal model reads its prompt's history only; remove it"
        if name is None:
            return
        history = self.inputs.get(name)
        if not isinstance(history, SequenceInput):
            yield f"prompt.history: {name!r} is not an input of kind sequence; declare it"
        elif history.side:
            yield f"inputs.{name}.side: a prompt has the SIDs of events only; remove it"
        elif name == PROMPT:
            yield f"inputs.{name}: requests send prompts by this name; give the history another"
        elif not self.most_events:
            most = self.prompt.max_tokens
            yield f"prompt.max_tokens: {most}, but no event of the history fits; give a larger one"

    @property
    def causal(self) -> CausalSpec:
        return self.decoder.causal

    @cached_property
    def tokens_of_codes(self) -> tuple[tuple[int, ...], ...]:
        """Return the token of each code, for every SID position."""
        pairs = zip(self.sid_tokens, self.vocab_sizes, strict=True)
        return tuple(tokens.of(codes) for tokens, codes in pairs)

    @property
    def most_events(self) -> int:
        """Return how many events of a history a prompt has at most; 0 without a history."""
        prompt, history = self.prompt, self.sequences.get(self.prompt.history or "")
        of_each = len(prompt.event.before) + self.sid_length + len(prompt.event.after)
        fit = (prompt.max_tokens - prompt.fixed_tokens) // of_each
        return 0 if history is None else min(history.max_length, fit)

    @property
    def encoder_kind(self) -> str:
        return "causal"

    @property
    def input_kinds(self) -> dict[str, str]:
        return {PROMPT: "tokens"} | super().input_kinds

    @property
    def packing(self) -> Packing:
        prompt = self.prompt
        return Packing(
            history=prompt.history,
            most_events=self.most_events,
            codes=self.tokens_of_codes,
            num_tokens=self.causal.num_tokens,
            most_tokens=prompt.max_tokens,
            prefix=prompt.prefix,
            suffix=prompt.suffix,
            before=prompt.event.before,
            after=prompt.event.after,
            prompt=PROMPT,
        )

    def to_json(self) -> dict[str, Any]:
        values = super().to_json()
        values["sid_tokens"] = [
            {name: value for name, value in asdict(tokens).items() if value not in (None, ())}
            for tokens in self.sid_tokens
        ]
        return values
