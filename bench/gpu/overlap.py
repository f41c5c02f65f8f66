"""How much of what is generated stays the same when the engine computes in half precision.

paper    the paper's decoder with random weights, whose logits have a standard deviation near 2,
         over its catalogue; the user context is random, cast to the precision
trained  a model that has learnt to foretell over 100,000 SIDs (trained_model.py), with the
         targeting of its catalogue; encoder and decoder both in the precision

Both are compared with the plain loop in float32 (model/definition/beam_search.py), on the same
users.
`overlap` is the share of its final SIDs that the engine generates too, `top_10` and `top_100` that
of its best among the engine's best, `step_overlap` that of its live beams after each step. In
float32 the engine is the same function up to near-ties, or there is no row. `learning` tells how
well the trained model foretells what people do next.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from grace.bench.gpu.agreement import require_overlap
from grace.bench.gpu.catalogue import Catalogue
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.results import Row
from grace.bench.gpu.subject import (
    Engine,
    Subject,
    contexts_of,
    engine_of,
    random_decoder_alone,
    subject_of,
)
from grace.bench.gpu.trained_model import Taught, lesson_of, prepare, teach
from grace.configs.generation import BeamProfile
from grace.index.trie import NO_NODE
from grace.index.users.user_rows import UserEncoder
from grace.kernels import (
    REFERENCE,
    Beams,
    DecodeIndex,
    Ops,
    UserTensors,
    admission_slot,
    load_encoder_ops,
    load_ops,
)
from grace.model.definition.beam_search import beam_search
from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext
from grace.model.definition.model import Model
from grace.model.engine.decode_loop import fast_search
from grace.model.engine.decode_weights import PRECISIONS, Precision
from grace.model.train.evaluate import ABSENT, popularity_ranks, random_recall, recall

__all__ = ["measure_overlap", "shared"]

REQUESTS = 512
PAPER_REQUESTS = 256
_TINY_REQUESTS = 6
_BEST = (10, 100)
_CUTOFFS = (1, 10, 50, 100)
LEAST_IN_FP32 = 0.999

Steps: TypeAlias = list[Tensor]
"""Nodes of the beams after each step, int32 [B, M] each; the last ordered, best first."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """`context_in` is the user context as the engine of a precision gets it."""

    context_in: Callable[[Precision], UserContext]
    users: UserTensors


@dataclass(slots=True)
class _Tally:
    """Counts over requests."""

    live: int = 0
    common: dict[str, list[int]] = field(default_factory=dict)  # name: [shared, all]
    worst: float = 1.0

    def add(self, got: Steps, expected: Steps) -> None:
        for step, (one, other) in enumerate(zip(got, expected, strict=True)):
            for found, wanted in zip(one, other, strict=True):
                self._add(f"step {step}", found, wanted)
        for found, wanted in zip(got[-1], expected[-1], strict=True):
            self.worst = min(self.worst, self._add("all", found, wanted))
            self.live += int((wanted != NO_NODE).sum())
            for best in _BEST:
                self._add(f"top {best}", found[:best], wanted[:best])

    def share(self, name: str) -> float:
        common, wanted = self.common[name]
        return common / wanted if wanted else 1.0

    def _add(self, name: str, found: Tensor, wanted: Tensor) -> float:
        common, total = shared(found, wanted)
        counts = self.common.setdefault(name, [0, 0])
        counts[0] += common
        counts[1] += total
        return common / total if total else 1.0


def shared(found: Tensor, wanted: Tensor) -> tuple[int, int]:
    """How many of the live nodes of `wanted` are in `found`, and of how many."""
    live = wanted[wanted != NO_NODE]
    return int(torch.isin(live, found).sum()), len(live)


@torch.inference_mode()
def measure_overlap(options: BenchOptions) -> Iterator[Row]:
    subject, parts = subject_of(options), options.wanted()
    if "paper" in parts:
        yield from _paper(options, subject)
    if "trained" in parts:
        yield from _trained(options, subject)


def _trained(options: BenchOptions, subject: Subject) -> Iterator[Row]:
    requests, device = _TINY_REQUESTS if options.tiny else REQUESTS, options.device
    lesson = lesson_of(options, requests)
    taught = prepare(lesson)
    with torch.inference_mode(mode=False):
        model, learning = teach(lesson, taught, device)
    index = DecodeIndex.of(taught.snapshot, device)
    encoder = UserEncoder(taught.snapshot.schema, taught.snapshot.set_values)
    batches = []
    for begin in range(0, requests, subject.batch):
        part = slice(begin, min(begin + subject.batch, requests))
        users = UserTensors.of(encoder.encode(taught.users[part]), device)
        batches.append(_Batch(_encoded(model, taught, part, device), users))
    known = _recall(subject, model, taught, index, batches)
    yield {"measure": "learning", "variant": "trained", **learning, **known}
    yield from _overlaps(options, subject, "trained", model, index, batches)


def _encoded(
    model: Model, taught: Taught, part: slice, device: torch.device
) -> Callable[[Precision], UserContext]:
    """In float32 as the model is defined, else as the product encodes."""
    inputs = taught.inputs(part, device)

    def context_in(precision: Precision) -> UserContext:
        if precision == "fp32":
            return model.user_context(inputs)
        own = deepcopy(model).to(PRECISIONS[precision])
        context: UserContext = own.encoder(own.features(inputs), load_encoder_ops(device))
        return context

    return context_in


def _recall(
    subject: Subject, model: Model, taught: Taught, index: DecodeIndex, batches: list[_Batch]
) -> Row:
    """Of people's newest event, which the model has not seen; whom ads are for does not matter."""
    requests = sum(len(batch.users.bitmask) for batch in batches)
    truth = taught.log.leaves[taught.log.last_events()[:requests]]
    free = index.without_matchers()
    ranks: list[int] = []
    for batch in batches:
        users = UserTensors(batch.users.bitmask, ())
        context = batch.context_in("fp32")
        nodes = _plain(model.decoder, context, users, free, subject.dynamic, {})[-1]
        leaves = (nodes - free.first_leaf).cpu().numpy()
        for row in leaves:
            found = np.flatnonzero(row == truth[len(ranks)])
            ranks.append(int(found[0]) if len(found) else ABSENT)
    counts = taught.log.leaf_counts(taught.snapshot.trie.num_leaves)
    rows = {
        "recall": recall(np.array(ranks), _CUTOFFS),
        "popularity_recall": recall(popularity_ranks(counts, truth), _CUTOFFS),
        "random_recall": random_recall(taught.snapshot.trie.num_leaves, _CUTOFFS),
    }
    return {
        "held_out_users": requests,
        **{
            name: {str(k): float(f"{share:.4g}") for k, share in row.items()}
            for name, row in rows.items()
        },
    }


def _paper(options: BenchOptions, subject: Subject) -> Iterator[Row]:
    requests, device = _TINY_REQUESTS if options.tiny else PAPER_REQUESTS, options.device
    catalogue = Catalogue.of(options, subject.default_sids)
    snapshot = catalogue.snapshot_to_decode()
    index = DecodeIndex.of(snapshot, device)
    count = requests // subject.batch
    users = catalogue.users(snapshot, device, count, subject.batch)
    contexts = contexts_of(subject, device, torch.float32, count)
    batches = [_Batch(_cast(context), own) for context, own in zip(contexts, users, strict=True)]
    model = random_decoder_alone(subject.spec, device)
    yield from _overlaps(options, subject, "paper", model, index, batches)


def _cast(context: UserContext) -> Callable[[Precision], UserContext]:
    return lambda precision: UserContext(context.states.to(PRECISIONS[precision]), context.mask)


def _overlaps(
    options: BenchOptions, subject: Subject, variant: str, model: Model, index: DecodeIndex,
    batches: list[_Batch],
) -> Iterator[Row]:  # fmt: skip
    spread: dict[int, list[float]] = {}
    expected = [
        _plain(model.decoder, batch.context_in("fp32"), batch.users, index, subject.dynamic, spread)
        for batch in batches
    ]
    for precision in dict.fromkeys(("fp32", *options.precisions)):
        dtype = PRECISIONS[precision]
        engine = engine_of(subject, model, load_ops(options.device), dtype)
        tally = _Tally()
        for batch, plain in zip(batches, expected, strict=True):
            context = batch.context_in(precision)
            tally.add(_fast(engine, context, batch.users, index, subject.dynamic), plain)
        if precision == "fp32":
            require_overlap(f"{variant} in fp32", tally.share("all"), LEAST_IN_FP32)
        requests = sum(len(batch.users.bitmask) for batch in batches)
        yield {
            "measure": "overlap",
            "variant": variant,
            "precision": precision,
            "sids": len(index.csr_tokens) + 1 - index.first_leaf,
            "requests": requests,
            "generated": round(tally.live / requests, 1),
            "overlap": round(tally.share("all"), 5),
            "worst_request": round(tally.worst, 4),
            **{f"top_{best}": round(tally.share(f"top {best}"), 5) for best in _BEST},
            "step_overlap": [
                round(tally.share(f"step {step}"), 5) for step in range(subject.spec.sid_length)
            ],
            "logit_std": [round(float(np.mean(spread[step])), 2) for step in sorted(spread)],
        }
        del engine


def _plain(
    decoder: Decoder, context: UserContext, users: UserTensors, index: DecodeIndex,
    profile: BeamProfile, spread: dict[int, list[float]],
) -> Steps:  # fmt: skip
    """By definition, in float32; `spread` gets the logits' standard deviation in live rows."""
    steps: Steps = []

    def told(logits: Tensor, scores: Tensor) -> None:
        live = logits[scores.flatten() > -torch.inf]
        spread.setdefault(len(steps), []).append(float(live.float().std(dim=1).mean()))

    beam_search(decoder, context, users, index, profile, _recording(REFERENCE, steps, told))
    return steps


def _fast(
    engine: Engine, context: UserContext, users: UserTensors, index: DecodeIndex,
    profile: BeamProfile,
) -> Steps:  # fmt: skip
    steps: Steps = []
    slot = admission_slot(engine.ops)
    slot.point_at(users, index)
    ops = _recording(engine.ops, steps)
    fast_search(engine.weights, engine.memo, context, slot, profile, ops)
    return steps


def _recording(
    ops: Ops, steps: Steps, told: Callable[[Tensor, Tensor], None] = lambda logits, scores: None
) -> Ops:
    def select_beams(logits: Tensor, scores: Tensor, *arguments: Any, **named: Any) -> Beams:
        told(logits, scores)
        beams = ops.select_beams(logits, scores, *arguments, **named)
        steps.append(beams.nodes.clone())
        return beams

    return replace(ops, select_beams=select_beams)
