"""One search twice, here and in `transformers`: equally many beams in every step, for everybody."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile
from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, Ops, UserTensors
from grace.model.definition.beam_search import beam_search
from support.documents import the_block
from support.oracle import RawAd
from support.plain_builder import plain_snapshot

HfModel = Any  # a model of transformers, whose annotations do not describe what it does
Tokens = tuple[int, ...]
Found = tuple[list[Tokens], list[float]]
"""The tokens of a request's SIDs, best first, and their summed log-probabilities."""

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
CPU = torch.device("cpu")
PAD = 0


def search(
    decoder: Any, context: Any, sids: Mapping[Tokens, Tokens], beams: int, ops: Ops
) -> list[Found]:
    """Search with a decoder of any family among SIDs in ascending order, each with its tokens."""
    schema, steps = TargetingSchema((), (), hash_seed=1), len(decoder.vocab_sizes)
    ads = [RawAd(ad_id=i, sid=sid, rules={}) for i, sid in enumerate(sids)]
    found = beam_search(
        decoder,
        context,
        UserTensors.of(UserEncoder(schema, ()).encode([{}] * len(context)), CPU),
        DecodeIndex.of(plain_snapshot(schema, decoder.vocab_sizes, ads, MatcherMode.CD), CPU),
        BeamProfile((1, *[beams] * (steps - 1)), beams),
        ops,
    )
    assert (found.leaves != NO_NODE).all()
    leaves, scores, tokens = found.leaves.tolist(), found.scores.tolist(), list(sids.values())
    return [([tokens[leaf] for leaf in row], of) for row, of in zip(leaves, scores, strict=True)]


def generate(
    theirs: HfModel,
    sids: Mapping[Tokens, Tokens],
    prompts: Tensor,
    mask: Tensor,
    beams: int,
    levels: Sequence[Sequence[int]] | None = None,
) -> list[Found]:
    """Run `generate` within these SIDs, with the document's processors if `levels` are given."""
    following: dict[Tokens, set[int]] = {}
    for tokens in sids.values():
        for length, token in enumerate(tokens):
            following.setdefault(tokens[:length], set()).add(token)
    begin = 1 if theirs.config.is_encoder_decoder else prompts.shape[1]

    def allowed(_: int, written: Tensor) -> list[int]:
        return sorted(following.get(tuple(written[begin:].tolist()), {PAD}))

    constrained: dict[str, Any] = {"prefix_allowed_tokens_fn": allowed}
    if levels is not None:
        code: dict[str, Any] = {}
        exec(the_block(PAGE, "python"), code)  # noqa: S102
        constrained = {"logits_processor": code["processors"](allowed, beams, levels, begin)}
    found = theirs.generate(
        input_ids=prompts,
        attention_mask=mask,
        num_beams=beams,
        num_return_sequences=beams,
        max_new_tokens=len(next(iter(sids))),
        length_penalty=0.0,
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
        **constrained,
    )
    written = found.sequences[:, begin:].view(len(prompts), beams, -1).tolist()
    scores = found.sequences_scores.view(len(prompts), beams).tolist()
    return [([*map(tuple, row)], of) for row, of in zip(written, scores, strict=True)]


def assert_same(ours: Sequence[Found], theirs: Sequence[Found], tolerance: float) -> None:
    for (sids, scores), (their_sids, their_scores) in zip(ours, theirs, strict=True):
        assert sids == their_sids
        assert (Tensor(scores) - Tensor(their_scores)).abs().max() <= tolerance
