"""Plain and fast searches with causal models of every kind, with catalogues, users and prompts."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from grace.configs.generation import BeamProfile, GenerationConfig
from grace.index.users.user_rows import UserEncoder
from grace.kernels import REFERENCE, DecodeIndex, Ops, UserTensors, with_eligible
from grace.model.checkpoints.init import random_model
from grace.model.definition.beam_search import Generated, beam_search
from grace.model.definition.causal_spec import (
    CausalDecoderSpec,
    CausalModelSpec,
    CausalSpec,
    PromptSpec,
    SidTokens,
)
from grace.model.definition.inputs import Prompts, map_tensors
from grace.model.definition.model import CausalModel
from grace.model.engine.causal_generation import CausalGeneration
from grace.model.engine.decode_weights import Precision
from grace.model.engine.feature_stage import PlacedPrompts
from grace.model.engine.graph_generation import EngineSettings, SearchTask
from support.causal_cases import causal_spec
from support.plain_builder import plain_snapshot
from support.strategies import asking, random_ads, random_schema, random_users

_QWEN3 = CausalSpec(2, 40, heads=4, kv_heads=2, d_head=10, d_ff=56, num_tokens=97, qk_norm=True)
_LLAMA = replace(_QWEN3, qk_norm=False, rope_theta=500.0)


def spec_of(
    causal: CausalSpec, vocab_sizes: tuple[int, ...], longest: int = 23, normalizer: str = "all"
) -> CausalModelSpec:
    """Tokens of every other position are in random order, at the end of the vocabulary."""
    orders = [np.random.default_rng(size).permutation(size) for size in vocab_sizes]
    tokens = [
        SidTokens(first=3 + 5 * place) if place % 2 else
        SidTokens(ids=tuple((causal.num_tokens - 1 - order).tolist()))
        for place, order in enumerate(orders)
    ]  # fmt: skip
    return causal_spec(
        vocab_sizes=vocab_sizes,
        inputs={},
        decoder=CausalDecoderSpec(causal),
        sid_tokens=tuple(tokens),
        prompt=PromptSpec(prefix=(1,), max_tokens=longest),
        normalizer=normalizer,
    )


CAUSAL = {
    "qwen3-tied": spec_of(replace(_QWEN3, tied_head=True), (7, 11, 5)),
    "qwen3-level": spec_of(_QWEN3, (7, 11, 5), normalizer="level"),
    "qwen2-L=4": spec_of(replace(_LLAMA, qkv_bias=True, kv_heads=1), (5, 3, 9, 4)),
    "llama-one-layer": spec_of(replace(_LLAMA, layers=1, kv_heads=4, d_head=6), (13, 9)),
    "L=1": spec_of(_LLAMA, (63,), longest=3),
}

WIDE = spec_of(
    CausalSpec(3, 128, 4, 2, 32, 192, 401, qk_norm=True, qkv_bias=True, tied_head=True),
    (37, 41, 29),
    longest=64,
)
"""A model whose widths precision fp8 can round."""


@dataclass(frozen=True)
class CausalCase:
    model: CausalModel
    prompts: PlacedPrompts
    users: UserTensors
    index: DecodeIndex
    profile: BeamProfile
    encoder: UserEncoder
    people: tuple[Any, ...]  # the requests' users

    @property
    def task(self) -> SearchTask:
        return SearchTask(self.users, self.index, self.profile)

    def of(self, rows: list[int], bucket: int) -> "CausalCase":
        """Return a batch of these requests, filled up to `bucket` with empty users."""
        values, offsets = self.prompts.values, self.prompts.offsets.tolist()
        parts = [values[offsets[row] : offsets[row + 1]] for row in rows]
        parts += [values[:1]] * (bucket - len(rows))
        borders = torch.tensor([0, *map(len, parts)]).cumsum(0).int().to(values.device)
        people = [self.people[row] for row in rows] + [asking({})] * (bucket - len(rows))
        users = UserTensors.of(self.encoder.encode(people), values.device)
        return replace(
            self,
            prompts=PlacedPrompts(borders, torch.cat(parts), int(borders[-1])),
            users=with_eligible(users, self.index, REFERENCE),
        )


def causal_case(
    spec: CausalModelSpec, seed: int, lengths: tuple[int, ...], beams: int = 9, ads: int = 150
) -> CausalCase:
    """Return a search on the CPU, with prompts of these `lengths`. Most steps have more candidates
    than beams."""
    rng = np.random.default_rng(seed)
    schema = random_schema(rng, (5, 64), 1)
    snapshot = plain_snapshot(
        schema, spec.vocab_sizes, random_ads(rng, schema, spec.vocab_sizes, ads)
    )
    users = [*random_users(rng, schema, len(lengths) - 1), {}]
    people, encoder = [*map(asking, users)], UserEncoder(schema, snapshot.set_values)
    rows = encoder.encode(people)
    offsets = np.cumsum([0, *lengths])
    tokens = rng.integers(spec.causal.num_tokens, size=offsets[-1])
    cpu = torch.device("cpu")
    index = DecodeIndex.of(snapshot, cpu)
    return CausalCase(
        model=random_model(spec, seed).eval().requires_grad_(False),
        prompts=PlacedPrompts(
            torch.from_numpy(offsets).int(), torch.from_numpy(tokens).int(), int(offsets[-1])
        ),
        users=with_eligible(UserTensors.of(rows, cpu), index, REFERENCE),
        index=index,
        profile=fitting(spec.vocab_sizes, beams),
        encoder=encoder,
        people=tuple(people),
    )


def fitting(vocab_sizes: tuple[int, ...], beams: int) -> BeamProfile:
    return BeamProfile((1, *[beams] * (len(vocab_sizes) - 1)), beams + 2)


def on(case: CausalCase, device: torch.device) -> CausalCase:
    given = case.prompts, case.users, case.index
    prompts, users, index = map_tensors(given, lambda tensor: tensor.to(device))
    model = case.model.to(device)
    return replace(case, prompts=prompts, users=users, index=index, model=model)


def causal_plainly(case: CausalCase) -> Generated:
    prompts = Prompts(case.prompts.offsets, case.prompts.values.long())
    args = case.users, case.index, case.profile, REFERENCE
    return beam_search(case.model.decoder, prompts, *args)


def causal_fast(case: CausalCase, ops: Ops, precision: Precision = "fp32") -> Generated:
    config = GenerationConfig(len(case.users.bitmask), {"full": case.profile})
    engine = CausalGeneration(case.model, ops, EngineSettings(precision, 0), config)
    return engine.generate(case.prompts, case.task)
