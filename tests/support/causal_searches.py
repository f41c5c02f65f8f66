"""Plain and fast searches with causal models of every kind, with catalogues, users and prompts."""

from collections.abc import Sequence
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
from grace.model.engine.causal.generation import CausalGeneration
from grace.model.engine.feature_stage import PlacedPrompts
from grace.model.engine.generation import EngineSettings, SearchTask
from grace.model.engine.precision import Precision
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
    people: tuple[Any, ...]  # the requests' users
    encoder: UserEncoder
    index: DecodeIndex
    profile: BeamProfile

    @property
    def task(self) -> SearchTask:
        users = UserTensors.of(self.encoder.encode(self.people), self.prompts.values.device)
        users = with_eligible(users, self.index, REFERENCE)
        return SearchTask(users, self.index, self.profile)

    def of(self, rows: list[int], bucket: int, changed: Sequence[int] = ()) -> "CausalCase":
        """Return these requests, some with other tokens, and empty users up to `bucket`."""
        values, offsets = self.prompts.values, self.prompts.offsets.tolist()
        parts = [values[offsets[row] : offsets[row + 1]] + (row in changed) for row in rows]
        parts += [values[:1]] * (bucket - len(rows))
        borders = torch.tensor([0, *map(len, parts)]).cumsum(0).int().to(values.device)
        people = [self.people[row] for row in rows] + [asking({})] * (bucket - len(rows))
        tokens = torch.cat(parts) % self.model.spec.causal.num_tokens
        prompts = PlacedPrompts(borders, tokens, len(tokens))
        return replace(self, prompts=prompts, people=tuple(people))


def causal_case(
    spec: CausalModelSpec, seed: int, lengths: tuple[int, ...], beams: int = 9, ads: int = 150
) -> CausalCase:
    """Return a search on the CPU. Most steps have more candidates than beams."""
    rng, steps = np.random.default_rng(seed), spec.sid_length
    schema = random_schema(rng, (5, 64), 1)
    sold = random_ads(rng, schema, spec.vocab_sizes, ads)
    snapshot = plain_snapshot(schema, spec.vocab_sizes, sold)
    people = [*random_users(rng, schema, len(lengths) - 1), {}]
    offsets = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    tokens = torch.from_numpy(rng.integers(spec.causal.num_tokens, size=sum(lengths))).int()
    return CausalCase(
        model=random_model(spec, seed).eval().requires_grad_(False),
        prompts=PlacedPrompts(offsets, tokens, len(tokens)),
        people=tuple(map(asking, people)),
        encoder=UserEncoder(schema, snapshot.set_values),
        index=DecodeIndex.of(snapshot, torch.device("cpu")),
        profile=BeamProfile((1, *[beams] * (steps - 1)), beams + 2),
    )


def on(case: CausalCase, device: torch.device) -> CausalCase:
    prompts, index = map_tensors((case.prompts, case.index), lambda tensor: tensor.to(device))
    return replace(case, prompts=prompts, index=index, model=case.model.to(device))


def causal_plainly(case: CausalCase) -> Generated:
    prompts = Prompts(case.prompts.offsets, case.prompts.values.long())
    task, decoder = case.task, case.model.decoder
    return beam_search(decoder, prompts, task.users, task.index, task.profile, REFERENCE)


def causal_fast(case: CausalCase, ops: Ops, precision: Precision = "fp32") -> Generated:
    config = GenerationConfig(len(case.prompts), {"full": case.profile})
    engine = CausalGeneration(case.model, ops, EngineSettings(precision, 0), config)
    return engine.generate(case.prompts, case.task)
