"""The decode loop of D3 against the number of SIDs, and what admission takes of it.

The engine, its weights and the users are the same, the catalogue differs: 3 to 100 million SIDs.
All decoders are captured first and then run by turns, so that each meets the same clock and heat.
Four batches of users and contexts take turns in each. `admission` is that of all steps, for the
beams which a generation over that catalogue has, a run being all four batches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from grace.bench.gpu.agreement import check_admission
from grace.bench.gpu.catalogue import Catalogue
from grace.bench.gpu.clock import by_turns, captured
from grace.bench.gpu.decoder_call import DecoderCall
from grace.bench.gpu.found import plain_found
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.recorded import record
from grace.bench.gpu.results import Row
from grace.bench.gpu.rotation import BATCHES, DecoderBatch
from grace.bench.gpu.subject import Engine, Subject, contexts_of
from grace.configs.generation import BeamProfile
from grace.index.matchers.modes import MatcherMode
from grace.kernels import AdmissionSlot, DecodeIndex, admission_slot
from grace.model.definition.inputs import UserContext

__all__ = ["SIZES", "measure_sizes"]

SIZES = (3_000_000, 10_000_000, 30_000_000, 100_000_000)
_TINY_SIZES = (2_000, 3_000)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Of each step of a batch's generation: the nodes, and how many children were admitted."""

    nodes: list[Tensor]
    admitted: int


@dataclass(frozen=True, slots=True)
class _Sized:
    """The calls on one catalogue, whose index the slots keep.

    admission  of all batches, one after the other
    """

    sids: int
    index_mb: int
    admitted: int
    slots: list[AdmissionSlot]
    decoder: DecoderCall
    admission: Callable[[], object]


def measure_sizes(options: BenchOptions, subject: Subject, engine: Engine) -> Iterator[Row]:
    contexts = contexts_of(subject, options.device, engine.weights.dtype, BATCHES)
    sizes = options.sids or (_TINY_SIZES if options.tiny else SIZES)
    held = [_sized(options, subject, engine, contexts, sids) for sids in sizes]
    decoders = by_turns(
        [each.decoder for each in held],
        options.device,
        options.seconds,
        befores=[each.decoder.rotation for each in held],
    )
    admissions = by_turns(
        [each.admission for each in held], options.device, options.seconds, calls=BATCHES
    )
    for sized, decoder, admission in zip(held, decoders, admissions, strict=True):
        times = {"decoder": decoder, "admission": admission}
        yield {
            "measure": "decoder",
            "mode": str(MatcherMode.UNION),
            "sids": sized.sids,
            "index_mb": sized.index_mb,
            "admitted": sized.admitted,
            **{
                f"{name}_{fact}": value
                for name, timing in times.items()
                for fact, value in (*timing.quantiles().items(), ("runs", timing.runs))
            },
            "admission_calls": admission.calls,
            "sm_clock_mhz": decoder.draw.sm_clock_mhz,
            "power_w": decoder.draw.power_w,
        }


def _sized(
    options: BenchOptions, subject: Subject, engine: Engine, contexts: Sequence[UserContext],
    sids: int,
) -> _Sized:  # fmt: skip
    """The host's arrays, gigabytes, are gone when it returns."""
    catalogue = Catalogue(sids, options.kept)
    snapshot = catalogue.snapshot_to_decode()
    index = DecodeIndex.of(snapshot, options.device)
    users = catalogue.users(snapshot, options.device, BATCHES, subject.batch)
    batches = [DecoderBatch(*each) for each in zip(contexts, users, strict=True)]
    slots = [admission_slot(engine.ops) for _ in batches]
    asked = [
        _asked(engine, batch, slot, index, subject.dynamic)
        for batch, slot in zip(batches, slots, strict=True)
    ]
    own = admission_slot(engine.ops)
    decoder = DecoderCall(engine, batches, own, index, subject.dynamic)
    expected = [
        plain_found(engine.plain.decoder, batch.context, batch.users, index, subject.dynamic)
        for batch in batches
    ]
    decoder.check(f"the decoder over {sids:,} SIDs", expected, options.precisions[0])

    def admit(slot: AdmissionSlot, nodes: Sequence[Tensor]) -> None:
        for each in nodes:
            slot.admit_children(each)

    return _Sized(
        sids,
        round(_bytes(index) / 1e6),
        round(sum(one.admitted for one in asked) / len(asked)),
        [*slots, own],
        decoder,
        captured(
            [partial(admit, slot, one.nodes) for slot, one in zip(slots, asked, strict=True)],
            options.device,
        ),
    )


def _asked(
    engine: Engine, batch: DecoderBatch, slot: AdmissionSlot, index: DecodeIndex,
    profile: BeamProfile,
) -> _Asked:  # fmt: skip
    """Compared with its definition; the slot then points at the batch."""
    slot.point_at(batch.users, index)
    nodes = [step.nodes for step in record(engine, batch.context, slot, profile)]
    return _Asked(nodes, sum(check_admission(slot, each, batch.users, index) for each in nodes))


def _bytes(index: DecodeIndex) -> int:
    tables = [index.bitmask_index, index.bitmask_table]
    tables += [tensor for bloom in index.blooms for tensor in (bloom.index, bloom.table)]
    return sum(t.nbytes for t in (index.node_offsets, index.csr_tokens, *tables) if t is not None)
