"""Join the entities of several shards: each once, in ascending order of id, with all of its ads.

Memory holds the ids of one kind and their places in each shard. Ads are read and written in blocks.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from grace.index.builder.sharding.output_folder import OutputFolder
from grace.index.entities import NO_ENTITY, Entities
from grace.index.storage.array_file import blocks, read_rows

ADS_AT_ONCE = 1 << 23

Places = npt.NDArray[np.int32]


def join_entities(
    shards: Sequence[tuple[Entities, ...]], out: OutputFolder
) -> tuple[Entities, ...]:
    return tuple(
        _join(kinds, out, f"entity{number}")
        for number, kinds in enumerate(zip(*shards, strict=True))
    )


def _join(shards: Sequence[Entities], out: OutputFolder, name: str) -> Entities:
    ids = np.unique(np.concatenate([shard.ids for shard in shards]))
    new_of = [np.searchsorted(ids, shard.ids).astype(np.int32) for shard in shards]
    offsets = np.zeros(len(ids) + 1, np.int64)
    for shard, new in zip(shards, new_of, strict=True):
        offsets[new + 1] += np.diff(shard.offsets)
    np.cumsum(offsets, out=offsets)
    of_ad, ads = out.array(f"{name}_of_ad", "<i4"), out.array(f"{name}_ads", "<i4")
    bases = []
    for shard, new in zip(shards, new_of, strict=True):
        bases.append(np.int32(of_ad.rows))
        places = np.append(new, np.int32(NO_ENTITY))  # the last one is for NO_ENTITY, -1
        for block in blocks(shard.of_ad):
            of_ad.append(places[block])
    for begin, end in _cuts(offsets):
        spans = [tuple(np.searchsorted(new, (begin, end)).tolist()) for new in new_of]
        if end == begin + 1:  # an entity of any size: its ads ascend from shard to shard
            for shard, span, base in zip(shards, spans, bases, strict=True):
                first, last = (int(shard.offsets[at]) for at in span)
                for block in blocks(shard.ads, first, last):
                    ads.append(block + base)
        else:
            ads.append(_merged(shards, spans, bases, new_of))
    return Entities(shards[0].name, ids, of_ad.finish(), offsets, ads.finish())


def _cuts(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut the entities into runs of at most ADS_AT_ONCE ads, or of a single entity."""
    begin, entities = 0, len(offsets) - 1
    while begin < entities:
        end = int(np.searchsorted(offsets, offsets[begin] + ADS_AT_ONCE, side="right")) - 1
        end = max(end, begin + 1)
        yield begin, end
        begin = end


def _merged(
    shards: Sequence[Entities],
    spans: Sequence[tuple[int, ...]],
    bases: Sequence[np.int32],
    new_of: Sequence[Places],
) -> npt.NDArray[np.int32]:
    """Return the ads of a run of entities, by entity, and within one from shard to shard."""
    owners, ads = [], []
    for shard, (first, last), base, new in zip(shards, spans, bases, new_of, strict=True):
        borders = shard.offsets[first : last + 1]
        owners.append(np.repeat(new[first:last], np.diff(borders)))
        ads.append(read_rows(shard.ads, int(borders[0]), int(borders[-1])) + base)
    by_owner = np.argsort(np.concatenate(owners), kind="stable")
    merged: npt.NDArray[np.int32] = np.concatenate(ads)[by_owner]
    return merged
