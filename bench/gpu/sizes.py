"""The decode loop of D3 against the number of SIDs, and what admission takes of it.

The engine, its weights and the users are the same, the catalogue differs: 3 to 100 million SIDs.
All decoders are captured first and then run by turns, so that each meets the same clock and heat.
`admission` is that of all steps, for the beams which a generation over that catalogue has.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.gpu.agreement import check_admission
from bench.gpu.catalogue import Catalogue
from bench.gpu.clock import by_turns, captured
from bench.gpu.decoder_call import decoder_call
from bench.gpu.options import BenchOptions
from bench.gpu.recorded import record
from bench.gpu.results import Row
from bench.gpu.subject import Engine, Subject, contexts_of
from index.matchers import MatcherMode
from kernels import AdmissionSlot, DecodeIndex, admission_slot
from model.inputs import UserContext

__all__ = ["SIZES", "measure_sizes"]

SIZES = (3_000_000, 10_000_000, 30_000_000, 100_000_000)
_TINY_SIZES = (2_000, 3_000)
_ROUNDS = 4  # of the quick admission in a run: it is then long enough to be launched ahead


@dataclass(frozen=True, slots=True)
class _Sized:
    """The calls on one catalogue, whose index the slot keeps."""

    sids: int
    index_mb: int
    admitted: int
    slot: AdmissionSlot
    decoder: Callable[[], object]
    admission: Callable[[], object]


def measure_sizes(options: BenchOptions, subject: Subject, engine: Engine) -> Iterator[Row]:
    context = contexts_of(subject, options.device, engine.weights.dtype, 1)[0]
    sizes = options.sids or (_TINY_SIZES if options.tiny else SIZES)
    held = [_sized(options, subject, engine, context, sids) for sids in sizes]
    decoders = by_turns([each.decoder for each in held], options.device, options.seconds)
    admissions = by_turns(
        [each.admission for each in held], options.device, options.seconds, calls=_ROUNDS
    )
    for sized, decoder, admission in zip(held, decoders, admissions, strict=True):
        times = {"decoder": decoder.row(), "admission": admission.row()}
        yield {
            "measure": "decoder",
            "mode": str(MatcherMode.UNION),
            "sids": sized.sids,
            "index_mb": sized.index_mb,
            "admitted": sized.admitted,
            **{
                f"{name}_{fact}": row[fact]
                for name, row in times.items()
                for fact in ("p50_ms", "p99_ms", "runs")
            },
            "sm_clock_mhz": decoder.draw.sm_clock_mhz,
            "power_w": decoder.draw.power_w,
        }


def _sized(
    options: BenchOptions, subject: Subject, engine: Engine, context: UserContext, sids: int
) -> _Sized:
    """The host's arrays, gigabytes, are gone when it returns."""
    catalogue = Catalogue(sids, options.kept)
    snapshot = catalogue.snapshot_to_decode()
    index = DecodeIndex.of(snapshot, options.device)
    (users,) = catalogue.users(snapshot, options.device, 1, subject.batch)
    slot = admission_slot(engine.ops)
    slot.point_at(users, index)
    nodes = [step.nodes for step in record(engine, context, slot, subject.dynamic)]
    admitted = sum(check_admission(slot, each, users, index) for each in nodes)

    def admit() -> None:
        for each in nodes:
            slot.admit_children(each)

    return _Sized(
        sids,
        round(_bytes(index) / 1e6),
        admitted,
        slot,
        decoder_call(engine, context, slot, subject.dynamic, options.device),
        captured([admit] * _ROUNDS, options.device),
    )


def _bytes(index: DecodeIndex) -> int:
    tables = [index.bitmask_index, index.bitmask_table]
    tables += [tensor for bloom in index.blooms for tensor in (bloom.index, bloom.table)]
    return sum(t.nbytes for t in (index.node_offsets, index.csr_tokens, *tables) if t is not None)
