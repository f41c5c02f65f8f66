"""Numbers for ads and entities with ids of any kind: each keeps its number in every build."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.configs.errors import InputError
from grace.index.builder.source import AdsFile
from grace.index.progress import Advance
from grace.index.storage.versions import CURRENT
from grace.index.tables.cells import texts
from grace.index.tables.item_numbers import IdMap, map_lock, replacing

_BATCH_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class RootMaps:
    """The file of a snapshot root that records the id maps of its latest build.

    Each level has {"map": identity, "ids": count}, or null if its ids are the numbers.
    """

    file: Path
    columns: Mapping[str, str]  # the column of ids of each level

    def require(self, paths: Mapping[str, Path], maps: Mapping[str, IdMap]) -> None:
        """Refuse a map that is not the recorded one, as it was or with more ids."""
        before = self._read() if (self.file.parent / CURRENT).exists() else {}
        for level in before.keys() & self.columns.keys():
            column = self.columns[level]
            if fault := _fault(level, paths.get(column), maps.get(column), before[level]):
                raise InputError(
                    f"{fault}, build into a new root, or remove {self.file} if no server has stops "
                    f"by these ids; live stops, histories and clients would mean other {level}s"
                )

    def write(self, maps: Mapping[str, IdMap]) -> None:
        now = self._read()
        for level, column in self.columns.items():
            found = maps.get(column)
            now[level] = None if found is None else {"map": found.identity, "ids": len(found)}
        with replacing(self.file) as unfinished:
            unfinished.write_text(json.dumps(now, indent=2), encoding="utf-8")

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{self.file}: cannot be read: {error}; restore it") from None


def _fault(level: str, path: Path | None, found: IdMap | None, before: Any) -> str | None:
    """Return how a level's map differs from the recorded one, and the first remedy."""
    if path is None or found is None:
        return before and f"{level}: its id map is missing: name it in tables.yaml again"
    if before is None:
        return f"{path}: would number ids of {level}, which were the numbers: leave it out"
    if not path.exists():
        return f"{path}: no such file: restore this id map"
    if found.identity != before["map"]:
        return f"{path}: another id map than that of the build before: restore that one"
    if len(found) < before["ids"]:
        of = f"{len(found):,} of {before['ids']:,} ids"
        return f"{path}: an older copy of the id map, with {of}: restore the latest"
    return None


def number_ids(
    files: Sequence[AdsFile], maps: Mapping[str, Path], kept: RootMaps, advance: Advance
) -> Mapping[str, IdMap]:
    """Give every id of these columns a number in its map. Other builds wait for the maps."""
    paths = {column: path.resolve() for column, path in maps.items()}
    done = 0
    with ExitStack() as locks:
        # In one order: two builds never wait in a circle.
        for path in sorted({*paths.values(), kept.file.resolve()}):
            locks.enter_context(map_lock(path))
        read = {path: IdMap.read(path) for path in paths.values()}
        names = {column: read[path] for column, path in paths.items()}
        known = {path: len(of_path) for path, of_path in read.items()}
        kept.require(paths, names)
        for file in files:
            numbered = {column: file.theirs[column] for column in names if column in file.theirs}
            for batch in file.table.batches(list(dict.fromkeys(numbered.values())), _BATCH_ROWS):
                for column, their in numbered.items():
                    given = texts(batch.column(their))
                    names[column].add(text for text in given if text is not None)
                done += batch.num_rows
                advance(done)
        # Before the snapshot: no number that a snapshot uses may ever be given to another id.
        for path, of_path in read.items():
            if len(of_path) > known[path] or of_path.identity is None:
                of_path.write(path)
        kept.write(names)
    return names
