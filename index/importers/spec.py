"""The options of an import and their checks: no file that it reads is one that it writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from grace.configs.errors import InputError
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE, is_sid_space

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class ImportSpec:
    source: Path  # .json, .jsonl or .npy
    out: Path
    sid_space: str
    ids: Path | None = None  # of the rows of a .npy; None: their numbers
    vocab_sizes: tuple[int, ...] | None = None  # None: as large as the tokens need
    sid_length: int | None = None  # longer SIDs are cut to it
    ads: Path | None = None  # a table to add the SIDs to; None: every item is an ad
    key: str | None = None  # its column that names the item; None: ad_id
    id_map: Path | None = None  # numbers for items; None: their ids are numbers
    max_rejects: int = 0
    force: bool = False

    @property
    def reject_file(self) -> Path:
        return self.out.with_suffix(".rejects.jsonl")


def check_spec(spec: ImportSpec) -> None:
    """Raises InputError before any work is done and any file touched."""
    _check_tokens(spec)
    suffix = spec.source.suffix.lower()
    if suffix not in (*JSON_SUFFIXES, ".npy"):
        raise InputError(
            f"{spec.source}: the name must end in .json (an index of items), .jsonl (an item a "
            "line) or .npy (an array of codes)"
        )
    if spec.ids is not None and suffix != ".npy":
        raise InputError(f"{spec.ids}: ids belong to a .npy; {spec.source} names its items itself")
    if spec.key is not None and spec.ads is None:
        raise InputError(f"--key {spec.key}: names a column of an ads table; give --ads, too")
    for path in (spec.source, spec.ids, spec.ads):
        if path is not None and not path.is_file():
            raise InputError(f"{path}: no such file")
    _check_files(spec)
    if spec.out.exists() and not spec.force:
        raise InputError(f"{spec.out}: exists; --force replaces it")
    if not spec.out.parent.is_dir():
        raise InputError(f"{spec.out.parent}: no such folder")


def _check_tokens(spec: ImportSpec) -> None:
    if not is_sid_space(spec.sid_space):
        raise InputError(f"SID space {spec.sid_space[:80]!r}: use 1 to 255 printable characters")
    sizes = spec.vocab_sizes
    if sizes is not None and not (
        1 <= len(sizes) <= MAX_SID_LENGTH and all(1 <= size <= MAX_VOCAB_SIZE for size in sizes)
    ):
        raise InputError(
            f"vocab sizes {sizes}: 1 to {MAX_SID_LENGTH} of them, each 1 to {MAX_VOCAB_SIZE}"
        )
    if spec.sid_length is not None and not 1 <= spec.sid_length <= MAX_SID_LENGTH:
        raise InputError(f"SID length {spec.sid_length}: 1 to {MAX_SID_LENGTH}")
    if sizes is not None and spec.sid_length not in (None, len(sizes)):
        raise InputError(
            f"vocab sizes {sizes} are not of {spec.sid_length} tokens: drop one option"
        )


def _check_files(spec: ImportSpec) -> None:
    """Refuse to write a file that is also read, or written as something else, under any name."""
    _require_no_folder("the table", spec.out)
    written = {"the table": spec.out, "the list of rejects": spec.reject_file}
    if spec.id_map is not None:
        written["the id map"] = spec.id_map
    for what, path in written.items():
        _require_no_folder(what, path)
    for one, other in combinations(written, 2):
        if _same(written[one], written[other]):
            raise InputError(f"{written[one]}: would be {one} and {other}; {_remedy(written)}")
    read = [path for path in (spec.source, spec.ids, spec.ads) if path is not None]
    for path, (what, target) in product(read, written.items()):
        if _same(path, target):
            raise InputError(f"{path}: is read, and would be {what}; {_remedy(written)}")


def _require_no_folder(what: str, path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path}: {what} cannot be written there, it is a folder; name a file")


def _remedy(written: Mapping[str, Path]) -> str:
    return f"name another --out{' or --id-map' if 'the id map' in written else ''}"


def _same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()
