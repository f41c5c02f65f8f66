"""A codebook's folder: the files that one command writes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import safetensors.numpy
import xxhash
from safetensors import SafetensorError

from grace.configs.errors import CheckpointError, InputError
from grace.configs.sections import load_section
from grace.configs.yaml_loader import read_yaml
from grace.index.codebook.codebook import Codebook, Level, Tokens, Vectors
from grace.index.codebook.items import Ids
from grace.index.snapshot import require_sids
from grace.index.tables.data_folder import SIDS_FILE
from grace.index.tables.rows import read_rows
from grace.index.tables.sid_table import COLUMNS, open_sid_table, sid_space_in

CODEBOOK_YAML = "codebook.yaml"  # SID space, sizes, and how the codebook was learned
WEIGHTS = "codebook.safetensors"  # `centres.T` and `prices.T` of each level T
REPORT = "report.json"  # the numbers that `grace sids` prints
FILES = (CODEBOOK_YAML, WEIGHTS, SIDS_FILE, f".{SIDS_FILE}.lock", REPORT)

_SPACE_DIGITS = 8
_LONGEST_NAME = 200
_BATCH_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class CodebookFacts:
    """The content of codebook.yaml."""

    format: int
    sid_space: str
    vocab_sizes: tuple[int, ...]
    dims: int
    seed: int
    balance: float
    items: int  # the number from which the codebook was learned
    sample: int  # the number of these that k-means saw
    errors: tuple[float, ...]  # by level: see LevelReport
    digest: str  # XXH3-128 of codebook.safetensors

    def __post_init__(self) -> None:
        if self.format != 1:
            raise ValueError(f"format: {self.format} is not 1; a newer version of grace wrote it")
        try:
            require_sids(self.sid_space, self.vocab_sizes)
        except InputError as error:
            raise ValueError(str(error)) from None


def default_space(out: Path, codebook: Codebook) -> str:
    """Return a name that no other codebook has, after the folder that holds `out`, or after it."""
    digest = xxhash.xxh3_128()
    for level in codebook.levels:
        for tensor in (level.centres, level.prices):
            digest.update(tensor.astype("<f4").tobytes())
    parent = out.parent.name
    name = out.resolve().name if parent in ("", "..") else parent
    shown = "".join(each for each in name if each.isprintable())[:_LONGEST_NAME]
    return f"{shown}-{digest.hexdigest()[:_SPACE_DIGITS]}"


def write_codebook(folder: Path, codebook: Codebook, facts: CodebookFacts) -> None:
    """Write the weights, then codebook.yaml with their digest."""
    tensors = {}
    for number, level in enumerate(codebook.levels):
        tensors[f"centres.{number}"], tensors[f"prices.{number}"] = level.centres, level.prices
    content = safetensors.numpy.save(tensors)
    (folder / WEIGHTS).write_bytes(content)
    values = {**asdict(facts), "digest": xxhash.xxh3_128_hexdigest(content)}
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in values.items()]
    (folder / CODEBOOK_YAML).write_text("".join(lines), encoding="utf-8")


def read_codebook(folder: Path) -> tuple[Codebook, CodebookFacts]:
    if not (folder / CODEBOOK_YAML).is_file():
        raise InputError(f"{folder}: no codebook here: expected a folder with {CODEBOOK_YAML}")
    facts = load_section(
        CodebookFacts, read_yaml(folder / CODEBOOK_YAML), str(folder / CODEBOOK_YAML)
    )
    path = folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(str(path), "missing; copy the whole folder again")
    content = path.read_bytes()
    if xxhash.xxh3_128_hexdigest(content) != facts.digest:
        raise CheckpointError(
            str(path),
            f"is not the file that {CODEBOOK_YAML} describes, or is damaged; copy the whole "
            "folder again",
        )
    try:
        tensors = safetensors.numpy.load(content)
        levels = tuple(_level(path, tensors, facts, at) for at in range(len(facts.vocab_sizes)))
    except (SafetensorError, KeyError) as error:
        raise CheckpointError(str(path), f"holds no codebook: {error}") from None
    return Codebook(levels, facts.vocab_sizes), facts


def _level(path: Path, tensors: Mapping[str, Vectors], facts: CodebookFacts, at: int) -> Level:
    centres, prices = tensors[f"centres.{at}"], tensors[f"prices.{at}"]
    (codes, *dims) = centres.shape
    if not 1 <= codes <= facts.vocab_sizes[at] or dims != [facts.dims] or prices.shape != (codes,):
        raise CheckpointError(
            str(path),
            f"level {at}: centres {[codes, *dims]} and prices {list(prices.shape)} are not those "
            f"of {facts.vocab_sizes[at]} codes and {facts.dims} dims",
        )
    return Level(centres, prices)


def read_sids(path: Path, facts: CodebookFacts) -> tuple[Ids, Tokens]:
    """Return the items and their SIDs, which this codebook gave.   [items], [items, levels]"""
    table = open_sid_table(str(path))
    space = sid_space_in(table)
    if table.schema.names != [*COLUMNS]:
        raise InputError(f"{path}: its columns must be item_id and sid, and no others")
    if space != facts.sid_space:
        raise InputError(
            f"{path}: has SID space {space!r}, the codebook {facts.sid_space!r}; name another --out"
        )
    is_text = not pa.types.is_integer(table.schema.field("item_id").type)
    ids = [pa.array([], pa.large_string() if is_text else pa.int64())]
    tokens = [np.empty((0, len(facts.vocab_sizes)), np.uint16)]
    sizes = np.array(facts.vocab_sizes)
    for rows in read_rows(table, COLUMNS, "item_id", _BATCH_ROWS):
        ids.append(rows.names("item_id"))
        tokens.append(rows.sids("sid", len(sizes), sizes).astype(np.uint16))
        rows.require_good("item")
    return pa.concat_arrays(ids), np.concatenate(tokens)
