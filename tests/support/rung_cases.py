"""A small decoder, contexts and a catalogue of every SID, on which rungs and engine must agree."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.bench.rungs.attention import DenseCache
from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile
from grace.kernels import REFERENCE
from grace.model.definition.beam_search import beam_search
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext
from support.decode_cases import DecodeCase, decode_case, every_sid_case
from support.models import SMALL_DECODER, random_context, random_decoder

VOCAB_SIZES = (7, 7, 7)
PROFILE = BeamProfile((1, 5, 11), 13)


@dataclass(frozen=True)
class RungCase:
    decoder: Decoder
    context: UserContext
    catalogue: DecodeCase
    profile: BeamProfile


def rung_case(seed: int, profile: BeamProfile = PROFILE) -> RungCase:
    decoder = random_decoder(SMALL_DECODER, VOCAB_SIZES, 17, seed)
    with torch.no_grad():
        decoder.bias.zero_()
    context = random_context(3, 9, 17, seed)
    full = UserContext(context.states, torch.ones_like(context.mask))
    case = every_sid_case(np.random.default_rng(seed), VOCAB_SIZES, num_users=3)
    return RungCase(decoder, full, decode_case(case, MatcherMode.CD), profile)


def expected_sids(case: RungCase) -> tuple[npt.NDArray[np.int64], Tensor]:
    """Return the plain search's SIDs [B, num_sids, L] and scores [B, num_sids]."""
    index = case.catalogue.index.without_matchers()
    generated = beam_search(
        case.decoder, case.context, case.catalogue.users, index, case.profile, REFERENCE
    )
    leaves = generated.leaves.numpy()
    sids = case.catalogue.snapshot.trie.sids(np.maximum(leaves, 0).reshape(-1))
    return sids.reshape(*leaves.shape, -1).astype(np.int64), generated.scores


def dense_inputs(
    seed: int, rows: int, length: int, heads: int, d_head: int, step: int, dtype: torch.dtype
) -> tuple[Tensor, DenseCache]:
    """Return qkv, and a cache with more rows than qkv, NaN where no kernel may read."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    caches = [normal(length, rows + 3, heads, d_head) for _ in range(2)]
    for cache in caches:
        cache[step:], cache[:, rows:] = torch.nan, torch.nan
    return normal(rows, 3, heads, d_head), DenseCache(*caches)
