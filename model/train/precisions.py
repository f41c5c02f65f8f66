"""What a server's precision changes: recall, and the SIDs that it finds of those in float32.

The plain loop in float32 is compared with the engine in bf16 and fp8, for the same users and
without targeting. The reference operations compute it, which round like the fast ones. So any
device measures both, also one that cannot serve with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from grace.configs.errors import ConfigError
from grace.configs.options import Fp8Product
from grace.kernels.encoder.encoder_ops import PLAIN_ENCODER
from grace.kernels.products.fp8_products import REFERENCE_ROUNDED
from grace.model.engine.decode_weights import Precision
from grace.model.engine.generation import EngineSettings, FastGeneration
from grace.model.train.evaluate import Search, quality, rank_of
from grace.model.train.interactions import HistoryBatches
from grace.model.train.loop import Progress

Int64 = npt.NDArray[np.int64]

_USERS = 256
_BEST = (10, 100)
_COMPARED: tuple[Precision, ...] = ("bf16", "fp8")
_MEMO_BYTES = 1 << 21  # for the second step: it takes longer to make more than to do without


@dataclass(frozen=True, slots=True)
class PrecisionQuality:
    """The quality of the SIDs that a precision finds.

    recall   by cut-off
    overlap  the shares of float32's best 10, 100 and all SIDs that are among the same number here
    refused  why the precision cannot serve the checkpoint; None if it can
    """

    recall: dict[int, float] = field(default_factory=dict)
    overlap: dict[str, float] = field(default_factory=dict)
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class ByPrecision:
    """The quality of each precision, over the same users.

    fp8_keep  the decoder's products that stay in bf16 with fp8
    """

    users: int
    fp8_keep: tuple[Fp8Product, ...]
    found: dict[str, PrecisionQuality]


def by_precision(
    search: Search,
    batches: HistoryBatches,
    events: Int64,
    cutoffs: Sequence[int],
    fp8_keep: tuple[Fp8Product, ...],
    progress: Progress,
) -> ByPrecision:
    """Measure float32 and each precision on the first users; the search is in float32."""
    measured = events[:_USERS]
    truth = batches.log.leaves[measured]
    most = search.profile.num_sids
    within = [k for k in cutoffs if k <= most]
    best = {f"best {k}": k for k in _BEST if k <= most} | {"all": most}
    wanted = search.all_leaves(batches, measured, progress, "fp32")
    found = {"fp32": _quality(truth, wanted, wanted, within, best)}
    for precision in _COMPARED:
        kept = fp8_keep if precision == "fp8" else ()
        settings = EngineSettings(precision, _MEMO_BYTES, kept)
        try:
            engine = FastGeneration(
                search.model, search.ops, settings, REFERENCE_ROUNDED, PLAIN_ENCODER
            )
        except ConfigError as error:
            found[precision] = PrecisionQuality(refused=str(error))
            continue
        faster = replace(search, engine=engine)
        leaves = faster.all_leaves(batches, measured, progress, precision)
        found[precision] = _quality(truth, leaves, wanted, within, best)
    return ByPrecision(len(measured), fp8_keep, found)


def _quality(
    truth: Int64, leaves: Int64, wanted: Int64, cutoffs: Sequence[int], best: dict[str, int]
) -> PrecisionQuality:
    return PrecisionQuality(
        recall=quality(rank_of(truth, leaves), cutoffs).recall,
        overlap={name: _shared(leaves[:, :k], wanted[:, :k]) for name, k in best.items()},
    )


def _shared(leaves: Int64, wanted: Int64) -> float:
    """Return the share of the wanted SIDs that were found, over all users; 1 without any."""
    pairs = zip(leaves, wanted, strict=True)
    common = sum(len(np.intersect1d(own, other[other >= 0])) for own, other in pairs)
    return float(common / (wanted >= 0).sum()) if (wanted >= 0).any() else 1.0
