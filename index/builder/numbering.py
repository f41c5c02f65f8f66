"""Numbers for ads whose ids are not numbers: the same ad keeps its number in every build."""

from collections.abc import Sequence
from pathlib import Path

from grace.index.builder.source import AdsFile
from grace.index.progress import Advance
from grace.index.tables.cells import texts
from grace.index.tables.item_numbers import IdMap, map_lock

_BATCH_ROWS = 1 << 17


def number_ads(files: Sequence[AdsFile], id_map: Path, advance: Advance) -> IdMap:
    """Give every ad of the table a number in the map, which other builds wait for meanwhile."""
    done = 0
    with map_lock(id_map):
        names = IdMap.read(id_map)
        known = len(names)
        for file in files:
            column = file.theirs["ad_id"]
            for batch in file.table.batches([column], _BATCH_ROWS):
                names.numbers([text for text in texts(batch.column(column)) if text is not None])
                done += batch.num_rows
                advance(done)
        # Before the snapshot: no number that a snapshot uses may ever be given to another ad.
        if len(names) > known or not id_map.exists():
            names.write(id_map)
    return names
