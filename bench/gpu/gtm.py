"""`grace bench gtm`: admission and selection alone, on the inputs of real generations.

admission   by matcher mode and step: `bitmask` is `union` without its sets; the masks that `exact`
            reads are made before, and its last step joins the rules of leaves
selection   by mode and step; `free` is without constraints
decoder     the whole decode loop in mode `union` against the number of SIDs, and its admission
masks       mode `exact`: node_masks.py

A timed run of a step asks for four batches of users in turn, so that none finds its rows in the
cache. Weights and users are the same over every catalogue size. All decoders are recorded first and
then run by turns, so that each meets the same clock and heat. All batches agreed with the
definition, and so did the results of the recorded run. Parts are named measure:mode, and decoder.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from grace.bench.gpu.instruments.measure import Timing, by_turns, require_close, require_equal
from grace.bench.gpu.subjects.catalogue import Catalogue
from grace.bench.gpu.subjects.node_masks import node_masks
from grace.bench.gpu.subjects.search import (
    DecoderBatch,
    DecoderGraph,
    EveryToken,
    StepInputs,
    eligible_users,
    engine_search,
    plain_result,
    seen_users,
    traced_steps,
)
from grace.bench.gpu.subjects.workload import BATCHES, Engine, Workload
from grace.bench.result_file import Row
from grace.configs.eligibility import MatcherMode
from grace.kernels import (
    REFERENCE,
    AdmissionSlot,
    Beams,
    Candidates,
    DecodeIndex,
    UserTensors,
    admission_slot,
)
from grace.model.definition.inputs import UserContext
from grace.model.engine.precision import PRECISIONS

MODES = ("cd", "bitmask", "union", "static", "dynamic", "exact")
SIZES = (3_000_000, 10_000_000, 30_000_000, 100_000_000)
_TINY_SIZES = (2_000, 3_000)
_ROUNDS = 4  # over the batches: a run is then long enough to be launched ahead


@dataclass(frozen=True)
class _Batch:
    """One batch of users, a slot that points at it, and the steps of its generation."""

    users: UserTensors
    slot: AdmissionSlot
    steps: list[StepInputs]

    def check_admission(self, step: StepInputs, index: DecodeIndex) -> int:
        """Return how many children the slot admits; raise if the definition admits others."""
        expected = REFERENCE.admit_children(step.nodes, self.users, index)
        _require_candidates(self.slot.admit_children(step.nodes), expected)
        return len(expected.tokens)


@torch.inference_mode()
def measure(work: Workload) -> Iterator[Row]:
    parts = work.options.parts()
    masks = [part for part in parts if part.startswith("masks")]
    if masks:
        yield from node_masks(work, [part.removeprefix("masks:") for part in masks])
    if len(masks) == len(parts):
        return
    engine = work.random_engine(work.options.precisions[0])
    steps = [part for part in parts if part != "decoder" and part not in masks]
    if steps:
        yield from _steps(work, engine, steps)
    if "decoder" in parts:
        yield from _sizes(work, engine)


def _steps(work: Workload, engine: Engine, parts: list[str]) -> Iterator[Row]:
    catalogue = work.catalogue()
    measures: dict[str, list[str]] = {mode: [] for mode in ("free", *MODES)}
    for part in parts:
        measure, _, mode = part.partition(":")
        measures[mode].append(measure)
    asked = [mode for mode, wanted in measures.items() if wanted]
    for built, modes in groupby(asked, key=_snapshot_mode):
        snapshot = catalogue.snapshot(built)
        index = DecodeIndex.of(snapshot, work.device)
        users = catalogue.users(snapshot, work.device, BATCHES, work.batch)
        users = eligible_users(users, index, engine.ops)
        for mode in modes:
            own = index_in_mode(mode, index)
            contexts = work.contexts(engine.weights.dtype, BATCHES)
            batches = _batches(work, engine, contexts, own, users, free=mode == "free")
            for measure in measures[mode]:
                total = 0.0
                for row in _of_mode(work, measure, mode, own, engine, batches):
                    total += row["p50_ms"]
                    yield {**row, "sids": work.sids}
                yield {
                    "measure": measure, "mode": mode, "step": "all", "sids": work.sids,
                    "p50_ms": round(total, 4),
                }  # fmt: skip
            del own, contexts, batches
        del snapshot, index, users


def _of_mode(
    work: Workload, measure: str, mode: str, index: DecodeIndex, engine: Engine,
    batches: list[_Batch],
) -> Iterator[Row]:  # fmt: skip
    for step in range(len(batches[0].steps)):
        if measure == "admission":
            timing = _admission(work, step, index, batches)
        else:
            timing = _selection(work, [batch.steps[step] for batch in batches], engine)
        admitted = [len(batch.steps[step].admitted.tokens) for batch in batches]
        yield {
            "measure": measure,
            "mode": mode,
            "step": step,
            "rows": batches[0].steps[step].nodes.numel(),
            "admitted": round(sum(admitted) / len(admitted)),
            **timing.row(),
        }


def _batches(
    work: Workload, engine: Engine, contexts: Sequence[UserContext], index: DecodeIndex,
    users: Sequence[UserTensors], *, free: bool = False,
) -> list[_Batch]:  # fmt: skip
    batches = []
    for context, own in zip(contexts, users, strict=True):
        slot: AdmissionSlot = EveryToken(engine.vocabulary) if free else admission_slot(engine.ops)
        seen = seen_users(index, own)
        slot.point_at(seen, index)
        batches.append(_Batch(seen, slot, traced_steps(engine, context, slot, work.dynamic)))
    return batches


def _snapshot_mode(mode: str) -> MatcherMode:
    """Return the snapshot that a mode needs; several read the one of `union`, or a part of it."""
    return MatcherMode(mode) if mode in ("static", "dynamic", "exact") else MatcherMode.UNION


def index_in_mode(mode: str, index: DecodeIndex) -> DecodeIndex:
    """Return the part of an index that the mode tests; the index has mode `union` or this mode."""
    if mode in ("free", "cd"):
        return index.without_matchers()
    return replace(index, blooms=()) if mode == "bitmask" else index


def _admission(work: Workload, step: int, index: DecodeIndex, batches: Sequence[_Batch]) -> Timing:
    calls = [partial(batch.slot.admit_children, batch.steps[step].nodes) for batch in batches]
    for batch in batches:
        batch.check_admission(batch.steps[step], index)

    def check(place: int, candidates: Candidates) -> None:
        _require_candidates(candidates, calls[place % len(calls)]())

    return work.timed_calls(calls * _ROUNDS, check)


def _require_candidates(got: Candidates, expected: Candidates) -> None:
    one, other = got.packed(), expected.packed()
    for name in ("offsets", "tokens", "nodes"):
        require_equal(f"admission, {name}", getattr(one, name), getattr(other, name))


def _selection(work: Workload, steps: Sequence[StepInputs], engine: Engine) -> Timing:
    expected = [step.select(REFERENCE) for step in steps]

    def check(place: int, beams: Beams) -> None:
        # Rounding may change which of several nearly equal beams is kept, so only scores compare.
        own = expected[place % len(steps)]
        best, defined = (each.scores.sort(dim=1)[0].clamp(min=-1e4) for each in (beams, own))
        require_close("selection", best, defined)
        require_equal("selection, corrupt", beams.corrupt, own.corrupt)

    return work.timed_calls([partial(step.select, engine.ops) for step in steps] * _ROUNDS, check)


@dataclass(frozen=True, slots=True)
class _Size:
    """The recorded calls over one catalogue; `admission` is that of all batches."""

    sids: int
    index_mb: int
    admitted: int
    decoder: DecoderGraph
    admission: Callable[[], object]


def _sizes(work: Workload, engine: Engine) -> Iterator[Row]:
    contexts = work.contexts(engine.weights.dtype, BATCHES)
    asked = work.options.sids or (_TINY_SIZES if work.options.tiny else SIZES)
    sizes = [_size(work, engine, contexts, sids) for sids in asked]
    device, seconds = work.device, work.options.seconds
    decoders = by_turns([(x.decoder, x.decoder.take_next) for x in sizes], device, seconds)
    admissions = by_turns([(x.admission, None) for x in sizes], device, seconds, calls=BATCHES)
    for size, decoder, admission in zip(sizes, decoders, admissions, strict=True):
        times = {"decoder": decoder, "admission": admission}
        yield {
            "measure": "decoder",
            "mode": str(MatcherMode.UNION),
            "sids": size.sids,
            "index_mb": size.index_mb,
            "admitted": size.admitted,
            **{
                f"{name}_{fact}": value
                for name, timing in times.items()
                for fact, value in (*timing.quantiles().items(), ("runs", timing.runs))
            },
            "admission_calls": admission.calls,
            "sm_clock_mhz": decoder.draw.sm_clock_mhz,
            "power_w": decoder.draw.power_w,
        }


def _size(work: Workload, engine: Engine, contexts: Sequence[UserContext], sids: int) -> _Size:
    """Record and check the calls; the host's arrays, gigabytes, are free when it returns."""
    precision = work.options.precisions[0]
    catalogue = Catalogue(sids, work.options.commit_cache)
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    index = DecodeIndex.of(snapshot, work.device)
    users = catalogue.users(snapshot, work.device, BATCHES, work.batch)
    batches = _batches(work, engine, contexts, index, users)
    admitted = sum(own.check_admission(step, index) for own in batches for step in own.steps)
    given = [DecoderBatch(*each) for each in zip(contexts, users, strict=True)]
    search = engine_search(engine, work.dynamic, index)
    decoder = DecoderGraph(work, search, given, PRECISIONS[precision])
    expected = [plain_result(engine.plain.decoder, each, index, work.dynamic) for each in given]
    decoder.check(f"the decoder over {sids:,} SIDs", expected, precision)

    def admit(slot: AdmissionSlot, asked: Sequence[Tensor]) -> None:
        for nodes in asked:
            slot.admit_children(nodes)

    calls = [partial(admit, own.slot, [step.nodes for step in own.steps]) for own in batches]
    return _Size(
        sids,
        round(_bytes(index) / 1e6),
        round(admitted / len(batches)),
        decoder,
        work.record_calls(calls),
    )


def _bytes(index: DecodeIndex) -> int:
    tables = [index.bitmask_index, index.bitmask_table]
    tables += [tensor for bloom in index.blooms for tensor in (bloom.index, bloom.table)]
    return sum(t.nbytes for t in (index.node_offsets, index.csr_tokens, *tables) if t is not None)
