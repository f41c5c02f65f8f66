"""Numbers for ads and entities of any name: each keeps its number in every build."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from grace.index.builder.source import AdsFile
from grace.index.progress import Advance
from grace.index.tables.cells import texts
from grace.index.tables.item_numbers import IdMap, map_lock

_BATCH_ROWS = 1 << 17


def number_ids(
    files: Sequence[AdsFile], maps: Mapping[str, Path], advance: Advance
) -> Mapping[str, IdMap]:
    """Give every id of these columns a number in its map, which other builds wait for meanwhile."""
    paths = {column: path.resolve() for column, path in maps.items()}
    done = 0
    with ExitStack() as locks:
        for path in sorted({*paths.values()}):  # one order: two builds never wait in a circle
            locks.enter_context(map_lock(path))
        read = {path: IdMap.read(path) for path in paths.values()}
        names = {column: read[path] for column, path in paths.items()}
        known = {path: len(of_path) for path, of_path in read.items()}
        for file in files:
            numbered = {column: file.theirs[column] for column in names if column in file.theirs}
            for batch in file.table.batches(list(dict.fromkeys(numbered.values())), _BATCH_ROWS):
                for column, their in numbered.items():
                    given = texts(batch.column(their))
                    names[column].numbers([text for text in given if text is not None])
                done += batch.num_rows
                advance(done)
        # Before the snapshot: no number that a snapshot uses may ever be given to another id.
        for path, of_path in read.items():
            if len(of_path) > known[path] or not path.exists():
                of_path.write(path)
    return names
