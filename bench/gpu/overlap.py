"""`grace bench overlap`: how much of what is generated stays the same in bf16 and fp8.

paper    the paper's decoder with random weights, whose logits have a standard deviation near 2,
         over its catalogue; the user context is random, cast to the precision
trained  a model that has learnt to predict over 100,000 SIDs (trained_model.py), with the targeting
         of its catalogue; encoder and decoder both in the precision

Both are compared with the plain loop in float32, on the same users. `overlap` is the share of its
final SIDs that the engine generates too, `top_10` and `top_100` that of its best among the engine's
best, `step_overlap` that of its live beams after each step. In float32 the engine must be the same
function up to near-ties. The trained model's `recall` is that of held-out people's newest event,
without targeting.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.bench.gpu.instruments.measure import require_overlap
from grace.bench.gpu.subjects.search import observed, shared, traced_search
from grace.bench.gpu.subjects.trained_model import TrainingData, prepare, train
from grace.bench.gpu.subjects.workload import Engine, Workload, random_decoder_alone
from grace.bench.result_file import Row
from grace.configs.eligibility import MatcherMode
from grace.index.users.user_rows import UserEncoder
from grace.kernels import REFERENCE, Beams, DecodeIndex, UserTensors, admission_slot
from grace.kernels.decode.select_beams import Choice
from grace.kernels.load import load_encoder_ops
from grace.model.definition.beam_search import beam_search
from grace.model.definition.inputs import UserContext
from grace.model.definition.model import Model
from grace.model.engine.encoder_decoder.fast_encoder import fast_encoder
from grace.model.engine.precision import PRECISIONS, Precision
from grace.model.train.evaluate import Popularity, Quality, quality, rank_of

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
    """`context_in` returns the user context as the engine of a precision gets it."""

    context_in: Callable[[Precision], UserContext]
    users: UserTensors


class Tally:
    """The numbers of expected live nodes and of those found, by name, summed over requests."""

    def __init__(self) -> None:
        self.found, self.wanted = Counter[str](), Counter[str]()
        self.worst = 1.0

    def add(self, got: Steps, expected: Steps) -> None:
        for step, (one, other) in enumerate(zip(got, expected, strict=True)):
            for found, wanted in zip(one, other, strict=True):
                self._add(f"step {step}", found, wanted)
        for found, wanted in zip(got[-1], expected[-1], strict=True):
            self.worst = min(self.worst, self._add("all", found, wanted))
            for best in _BEST:
                self._add(f"top {best}", found[:best], wanted[:best])

    def share(self, name: str) -> float:
        return self.found[name] / self.wanted[name] if self.wanted[name] else 1.0

    def row(self, requests: int, index: DecodeIndex) -> Row:
        return {
            "sids": len(index.csr_tokens) + 1 - index.first_leaf,
            "requests": requests,
            "generated": round(self.wanted["all"] / requests, 1),
            "overlap": round(self.share("all"), 5),
            "worst_request": round(self.worst, 4),
            **{f"top_{best}": round(self.share(f"top {best}"), 5) for best in _BEST},
        }

    def _add(self, name: str, found: Tensor, wanted: Tensor) -> float:
        common, total = shared(found, wanted)
        self.found[name] += common
        self.wanted[name] += total
        return common / total if total else 1.0


@torch.inference_mode()
def measure(work: Workload) -> Iterator[Row]:
    parts = work.options.parts()
    if "paper" in parts:
        yield from _paper(work)
    if "trained" in parts:
        yield from _trained(work)


def _paper(work: Workload) -> Iterator[Row]:
    requests = _TINY_REQUESTS if work.options.tiny else PAPER_REQUESTS
    catalogue = work.catalogue()
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    index = DecodeIndex.of(snapshot, work.device)
    count = requests // work.batch
    users = catalogue.users(snapshot, work.device, count, work.batch)
    contexts = work.contexts(torch.float32, count)
    batches = [_Batch(_cast(context), own) for context, own in zip(contexts, users, strict=True)]
    model = random_decoder_alone(work.spec, work.device)
    yield from _overlaps(work, "paper", model, index, batches)


def _cast(context: UserContext) -> Callable[[Precision], UserContext]:
    return lambda precision: UserContext(context.states.to(PRECISIONS[precision]), context.mask)


def _trained(work: Workload) -> Iterator[Row]:
    requests, device = _TINY_REQUESTS if work.options.tiny else REQUESTS, work.device
    data = prepare(work.options.tiny, requests)
    with torch.inference_mode(mode=False):
        model, learning = train(data, device)
    index = DecodeIndex.of(data.snapshot, device)
    encoder = UserEncoder(data.snapshot.schema, data.snapshot.set_values)
    batches = []
    for begin in range(0, requests, work.batch):
        part = slice(begin, min(begin + work.batch, requests))
        users = UserTensors.of(encoder.encode(data.users[part]), device)
        batches.append(_Batch(_encoded(model, data, part, device), users))
    held_out = _HeldOut.of(data, index, batches)
    nodes = [_plain(work, model, batch, held_out.index)[-1] for batch in held_out.batches]
    sids = data.snapshot.trie.num_leaves
    by_popularity = Popularity.of(data.log, sids).ranks(held_out.truth)
    yield {
        "measure": "learning",
        "variant": "trained",
        **learning,
        "held_out_users": requests,
        "recall": held_out.recall(nodes),
        "popularity_recall": _rounded(quality(by_popularity, _CUTOFFS)),
    }
    yield from _overlaps(work, "trained", model, index, batches, held_out)


def _encoded(
    model: Model, data: TrainingData, part: slice, device: torch.device
) -> Callable[[Precision], UserContext]:
    """Encode in float32 as the model is defined, else as the product does."""
    inputs = data.inputs(part, device)

    def context_in(precision: Precision) -> UserContext:
        if precision == "fp32":
            return model.user_context(inputs)
        dtype = PRECISIONS[precision]
        features = deepcopy(model.features).to(dtype)(inputs)
        return fast_encoder(model, dtype, load_encoder_ops(device))(features)

    return context_in


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """People whose newest event no model has seen, and a catalogue that targets nobody."""

    truth: npt.NDArray[np.int64]  # int64 [people]: the SID of that event
    index: DecodeIndex
    batches: list[_Batch]

    @staticmethod
    def of(data: TrainingData, index: DecodeIndex, batches: list[_Batch]) -> "_HeldOut":
        free = [replace(batch, users=UserTensors.asking(batch.users.bitmask)) for batch in batches]
        people = sum(len(batch.users.bitmask) for batch in batches)
        truth = data.log.leaves[data.log.last_events()[:people]]
        return _HeldOut(truth, index.without_matchers(), free)

    def recall(self, nodes: list[Tensor]) -> dict[str, float]:
        """Return the recall by cut-off of each batch's generated nodes, best first."""
        leaves = (torch.cat(nodes) - self.index.first_leaf).cpu().numpy()
        return _rounded(quality(rank_of(self.truth, leaves), _CUTOFFS))


def _rounded(measured: Quality) -> dict[str, float]:
    return {str(k): float(f"{share:.4g}") for k, share in measured.recall.items()}


def _overlaps(
    work: Workload, variant: str, model: Model, index: DecodeIndex, batches: list[_Batch],
    held_out: _HeldOut | None = None,
) -> Iterator[Row]:  # fmt: skip
    spread: dict[int, list[float]] = {}
    expected = [_plain(work, model, batch, index, spread) for batch in batches]
    for precision in dict.fromkeys(("fp32", *work.options.precisions)):
        engine = work.engine(model, precision)
        tally = Tally()
        for batch, plain in zip(batches, expected, strict=True):
            tally.add(_fast(work, engine, batch, index, precision), plain)
        if precision == "fp32":
            require_overlap(f"{variant} in fp32", tally.share("all"), LEAST_IN_FP32)
        requests = sum(len(batch.users.bitmask) for batch in batches)
        recall = {}
        if held_out is not None:
            free = held_out.index
            nodes = [_fast(work, engine, one, free, precision)[-1] for one in held_out.batches]
            recall["recall"] = held_out.recall(nodes)
        yield {
            "measure": "overlap",
            "variant": variant,
            "precision": precision,
            **tally.row(requests, index),
            "step_overlap": [
                round(tally.share(f"step {step}"), 5) for step in range(work.spec.sid_length)
            ],
            "logit_std": [round(float(np.mean(spread[step])), 2) for step in sorted(spread)],
            **recall,
        }
        del engine


def _plain(
    work: Workload, model: Model, batch: _Batch, index: DecodeIndex,
    spread: dict[int, list[float]] | None = None,
) -> Steps:  # fmt: skip
    """Generate by definition, in float32; `spread` gets the logits' deviation in live rows."""
    steps: Steps = []

    def keep(given: Choice, beams: Beams) -> None:
        if spread is not None:
            live = given.logits[given.scores.flatten() > -torch.inf]
            deviation = float(live.float().std(dim=1).mean())
            spread.setdefault(len(steps), []).append(deviation)
        steps.append(beams.nodes.clone())

    context, ops = batch.context_in("fp32"), observed(REFERENCE, keep)
    beam_search(model.decoder, context, batch.users, index, work.dynamic, ops)
    return steps


def _fast(
    work: Workload, engine: Engine, batch: _Batch, index: DecodeIndex, precision: Precision
) -> Steps:
    slot = admission_slot(engine.ops)
    slot.point_at(batch.users, index)
    return list(traced_search(engine, batch.context_in(precision), slot, work.dynamic).places)
