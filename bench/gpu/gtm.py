"""Admission and selection alone, on what real generations ask; and how generation grows with SIDs.

admission   by matcher mode and step: `bitmask` is `union` without its sets
selection   by mode and step; `free` is without constraints
decoder     the whole decode loop in mode `union`, by the number of SIDs (sizes.py)

Each timed run asks for four batches of users in turn, so that none finds its rows in the cache; all
four agreed with the definition, and so did what the recorded run left.
Parts are named measure:mode, as in admission:static, and decoder.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import torch

from grace.bench.gpu.agreement import (
    check_admission,
    require_candidates,
    require_close,
    require_equal,
)
from grace.bench.gpu.catalogue import Catalogue
from grace.bench.gpu.clock import captured, sustained
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.recorded import RecordedStep, record
from grace.bench.gpu.results import Row
from grace.bench.gpu.rotation import BATCHES
from grace.bench.gpu.sizes import measure_sizes
from grace.bench.gpu.subject import (
    Engine,
    Subject,
    contexts_of,
    engine_of,
    random_decoder_alone,
    subject_of,
)
from grace.bench.rungs.every_token import EveryToken
from grace.index.matchers.modes import MatcherMode
from grace.kernels import (
    REFERENCE,
    AdmissionSlot,
    Beams,
    DecodeIndex,
    UserTensors,
    admission_slot,
    load_ops,
)
from grace.model.engine.decode_weights import PRECISIONS

__all__ = ["MODES", "bitmask_only", "measure_gtm"]

MODES = ("cd", "bitmask", "union", "static", "dynamic")
_ROUNDS = 4  # over the batches: a run is then long enough to be launched ahead

_BUILT: dict[str, MatcherMode] = {
    "free": MatcherMode.UNION,
    "cd": MatcherMode.UNION,
    "bitmask": MatcherMode.UNION,
    "union": MatcherMode.UNION,
    "static": MatcherMode.STATIC,
    "dynamic": MatcherMode.DYNAMIC,
}
"""Of which snapshot; the first three leave its matchers aside, or those of its sets."""


@dataclass(frozen=True)
class _Batch:
    """One batch of users, and the slot that knows it."""

    users: UserTensors
    slot: AdmissionSlot
    steps: list[RecordedStep]


@torch.inference_mode()
def measure_gtm(options: BenchOptions) -> Iterator[Row]:
    subject, parts = subject_of(options), options.wanted()
    dtype = PRECISIONS[options.precisions[0]]
    model = random_decoder_alone(subject.spec, options.device)
    engine = engine_of(subject, model, load_ops(options.device), dtype)
    measured = [part for part in parts if part != "decoder"]
    if measured:
        sids = options.sids[0] if options.sids else subject.default_sids
        yield from _steps(options, subject, engine, measured, sids)
    if "decoder" in parts:
        yield from measure_sizes(options, subject, engine)


def _steps(
    options: BenchOptions, subject: Subject, engine: Engine, parts: list[str], sids: int
) -> Iterator[Row]:
    catalogue = Catalogue(sids, options.kept)
    measures: dict[str, list[str]] = {mode: [] for mode in ("free", *MODES)}
    for part in parts:
        measure, _, mode = part.partition(":")
        measures[mode].append(measure)
    asked = [mode for mode, wanted in measures.items() if wanted]
    # The k-way modes are built from the ads: if these are made, union is made of them, too.
    with_ads = any(_BUILT[mode] is not MatcherMode.UNION for mode in asked)
    for built, modes in groupby(asked, key=lambda mode: _BUILT[mode]):
        snapshot = catalogue.snapshot(built) if with_ads else catalogue.snapshot_to_decode()
        index = DecodeIndex.of(snapshot, options.device)
        users = catalogue.users(snapshot, options.device, BATCHES, subject.batch)
        for mode in modes:
            own = _seen_by(mode, index, users)
            batches = _recorded(options, subject, engine, mode, *own)
            for measure in measures[mode]:
                total = 0.0
                for row in _of_mode(options, measure, mode, own[0], engine, batches):
                    total += row["p50_ms"]
                    yield {**row, "sids": sids}
                yield {
                    "measure": measure, "mode": mode, "step": "all", "sids": sids,
                    "p50_ms": round(total, 4),
                }  # fmt: skip
            del own, batches
        del snapshot, index, users


def _of_mode(
    options: BenchOptions,
    measure: str,
    mode: str,
    index: DecodeIndex,
    engine: Engine,
    batches: list[_Batch],
) -> Iterator[Row]:
    for step in range(len(batches[0].steps)):
        if measure == "admission":
            run = _checked_admission(options, step, index, batches)
        else:
            run = _checked_selection(options, [batch.steps[step] for batch in batches], engine)
        calls = len(batches) * _ROUNDS
        timing = sustained(run, options.device, options.seconds, calls=calls)
        candidates = [batch.steps[step].candidates.packed() for batch in batches]
        yield {
            "measure": measure,
            "mode": mode,
            "step": step,
            "rows": batches[0].steps[step].nodes.numel(),
            "admitted": round(sum(len(each.tokens) for each in candidates) / len(candidates)),
            **timing.row(),
        }


def _recorded(
    options: BenchOptions,
    subject: Subject,
    engine: Engine,
    mode: str,
    index: DecodeIndex,
    users: list[UserTensors],
) -> list[_Batch]:
    """Batches of users, each with a slot that points at it and what its generation asked."""
    contexts = contexts_of(subject, options.device, engine.weights.dtype, BATCHES)
    batches = []
    for context, own in zip(contexts, users, strict=True):
        slot: AdmissionSlot = (
            EveryToken(max(subject.spec.vocab_sizes))
            if mode == "free"
            else admission_slot(engine.ops)
        )
        slot.point_at(own, index)
        steps = record(engine, context, slot, subject.dynamic)
        batches.append(_Batch(own, slot, steps))
    return batches


def _seen_by(
    mode: str, index: DecodeIndex, users: list[UserTensors]
) -> tuple[DecodeIndex, list[UserTensors]]:
    if mode in ("free", "cd"):
        return index.without_matchers(), users
    return bitmask_only(index, users) if mode == "bitmask" else (index, users)


def bitmask_only(
    index: DecodeIndex, users: list[UserTensors]
) -> tuple[DecodeIndex, list[UserTensors]]:
    return replace(index, blooms=()), [replace(each, sets=()) for each in users]


def _checked_admission(
    options: BenchOptions, step: int, index: DecodeIndex, batches: Sequence[_Batch]
) -> Callable[[], object]:
    calls = [partial(batch.slot.admit_children, batch.steps[step].nodes) for batch in batches]
    run = captured(calls * _ROUNDS, options.device)
    for place, candidates in enumerate(run()):
        batch = batches[place % len(batches)]
        if place < len(batches):
            check_admission(batch.slot, batch.steps[step].nodes, batch.users, index)
        require_candidates(candidates, batch.slot.admit_children(batch.steps[step].nodes))
    return run


def _checked_selection(
    options: BenchOptions, steps: Sequence[RecordedStep], engine: Engine
) -> Callable[[], object]:
    run = captured([partial(_select, step, engine) for step in steps] * _ROUNDS, options.device)
    expected = [
        REFERENCE.select_beams(
            step.logits, step.scores, step.candidates, step.kept, step.ordered, step.row_scale
        )
        for step in steps
    ]
    for place, beams in enumerate(run()):
        _require_selection(beams, expected[place % len(steps)])
    return run


def _select(step: RecordedStep, engine: Engine) -> Beams:
    return engine.ops.select_beams(
        step.logits, step.scores, step.candidates, step.kept, step.ordered, step.row_scale
    )


def _require_selection(got: Beams, expected: Beams) -> None:
    """Scores are equal up to rounding; which of near-ties is kept may then differ."""
    best, defined = (beams.scores.sort(dim=1)[0].clamp(min=-1e4) for beams in (got, expected))
    require_close("selection", best, defined)
    require_equal("selection, corrupt", got.corrupt, expected.corrupt)
