"""Numbers for ads and entities with ids of any kind: each keeps its number in every build."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from grace.configs.errors import InputError
from grace.index.builder.source import AdsFile
from grace.index.progress import Advance
from grace.index.tables.cells import texts
from grace.index.tables.item_numbers import IdMap, map_lock, replacing

_BATCH_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class MapRecord:
    """The facts by which a build accepts new ids in an id map, and refuses another map."""

    largest: int  # number; -1 without any
    digest: str  # of the ids up to it


@dataclass(slots=True)
class RootMaps:
    """The file of a snapshot root with its latest build's id maps by level, null for none."""

    file: Path
    columns: Mapping[str, str]  # the column of ids of each level
    found: Mapping[str, MapRecord] = field(default_factory=dict)  # of this build, by column

    def require(self, paths: Mapping[str, Path], maps: Mapping[str, IdMap]) -> None:
        """Refuse a map that is not the recorded one, as it was or with more ids."""
        before = self._read()
        for level in before.keys() & self.columns.keys():
            column = self.columns[level]
            if fault := _fault(level, paths.get(column), maps.get(column), before[level]):
                raise InputError(
                    f"{fault}, build into a new root, or remove {self.file} if no server has stops "
                    f"by these ids; live stops, histories and clients would mean other {level}s"
                )

    def write(self) -> None:
        with map_lock(self.file):
            records = self._read()
            records |= {level: self.found.get(column) for level, column in self.columns.items()}
            text = json.dumps({level: each and asdict(each) for level, each in records.items()})
            with replacing(self.file) as unfinished:
                unfinished.write_text(text, encoding="utf-8")

    def _read(self) -> dict[str, MapRecord | None]:
        try:
            records = json.loads(self.file.read_text(encoding="utf-8"))
            return {
                level: each if each is None else MapRecord(int(each["largest"]), each["digest"])
                for level, each in records.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            remedy = "restore it, or remove it if no server has stops by these ids"
            raise InputError(f"{self.file}: cannot be read: {error}; {remedy}") from None


def _fault(level: str, path: Path | None, now: IdMap | None, old: MapRecord | None) -> str | None:
    """Return how a level's map differs from the recorded one, and the first remedy."""
    if path is None or now is None:
        remedy = "name it in tables.yaml again"
        return None if old is None else f"{level}: its id map is missing: {remedy}"
    if old is None:
        return f"{path}: would number ids of {level}, which were numbers themselves: leave it out"
    if not path.exists():
        return f"{path}: no such file: restore this id map"
    if now.digest(old.largest) != old.digest:
        return f"{path}: another id map than the build before had, or an older copy: restore it"
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
            if len(of_path) > known[path] or not path.exists():
                of_path.write(path)
        kept.found = {name: MapRecord(m.largest, m.digest(m.largest)) for name, m in names.items()}
    return names
