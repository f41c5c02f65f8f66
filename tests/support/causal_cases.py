"""Small causal models, with prompts of every layout."""

from random import Random
from typing import Any

from grace.model.definition.causal_spec import (
    CausalDecoderSpec,
    CausalModelSpec,
    CausalSpec,
    EventTokens,
    PromptSpec,
    SidTokens,
)
from grace.model.definition.spec import InputSpec, SequenceInput

VOCAB_SIZES = (7, 5, 11)
PROMPT = PromptSpec(
    prefix=(40, 2), event=EventTokens((41,), (42, 43)), history="clicks", suffix=(9,), max_tokens=17
)
TOKENS = (SidTokens(first=20), SidTokens(ids=(3, 60, 4, 59, 5)), SidTokens(first=27))


def causal_spec(**others: Any) -> CausalModelSpec:
    """Return a model whose prompts have two events at most."""
    values: dict[str, Any] = {
        "sid_space": "test",
        "vocab_sizes": VOCAB_SIZES,
        "inputs": {"clicks": SequenceInput(max_length=9)},
        "decoder": CausalDecoderSpec(CausalSpec(2, 20, 6, 3, 14, 37, num_tokens=300, qk_norm=True)),
        "sid_tokens": TOKENS,
        "prompt": PROMPT,
    }
    return CausalModelSpec(**values | others)


def random_causal_spec(random: Random) -> CausalModelSpec:
    """Return a model with random tokens; some have none before, between or after events."""
    num_tokens = random.randint(max(VOCAB_SIZES), 99)

    def some(least: int = 0) -> tuple[int, ...]:
        return tuple(random.choices(range(num_tokens), k=random.randint(least, 3)))

    sid_tokens = []
    for size in VOCAB_SIZES:
        ids = random.sample(range(num_tokens), size)
        first = random.randint(0, num_tokens - size)
        sid_tokens.append(random.choice((SidTokens(ids=tuple(ids)), SidTokens(first=first))))
    prefix, event, suffix = some(), EventTokens(some(), some()), some(least=1)
    history = random.choice(("clicks", "größe", None))
    least = len((*prefix, *event.before, *VOCAB_SIZES, *event.after, *suffix))
    prompt = PromptSpec(prefix, event, history, suffix, least + random.randint(0, 40))
    inputs: dict[str, InputSpec] = {history: SequenceInput(random.randint(1, 9))} if history else {}
    decoder = CausalDecoderSpec(CausalSpec(1, 4, 1, 1, 2, 3, num_tokens))
    return causal_spec(inputs=inputs, decoder=decoder, sid_tokens=tuple(sid_tokens), prompt=prompt)
