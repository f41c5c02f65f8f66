"""Make a codebook, from top to bottom, as `grace sids` does; give new ads SIDs, as builds do."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from grace.configs.arrays import Float64
from grace.configs.errors import InputError
from grace.configs.options import CodebookSpec
from grace.configs.regular_files import whole_folder
from grace.index.codebook.codebook import Codebook, Tokens, Vectors
from grace.index.codebook.folder import (
    FILES,
    REPORT,
    CodebookFacts,
    default_space,
    read_codebook,
    read_sids,
    write_codebook,
)
from grace.index.codebook.items import Ids, Items
from grace.index.codebook.report import SidReport, report_of
from grace.index.progress import Progress
from grace.index.snapshot import require_ids, require_sids
from grace.index.tables.data_folder import SIDS_FILE
from grace.index.tables.sid_table import first_repeat, write_sid_table

Learn = Callable[[Vectors, tuple[int, ...], float, int, Callable[[int], None]], Codebook]
"""Learns a codebook from a sample, codes, balance and seed; calls its last argument per level."""

POINTS_PER_CODE = 128
LEAST_SAMPLE = 1 << 15


def make_codebook(
    items: Items, spec: CodebookSpec, out: Path, learn: Learn, progress: Progress
) -> SidReport:
    """Read the items twice: to check and sample, and to give SIDs. Return how good these are."""
    codes = spec.sizes
    require_sids(spec.sid_space or "-", codes)
    _require_room(out, spec.force)
    sample = Sample(max(POINTS_PER_CODE * max(codes), LEAST_SAMPLE), spec.seed)
    ids = _read(items, sample, progress)
    rows = sample.rows()
    progress("learn levels", 0, len(codes))
    codebook = learn(
        rows, codes, spec.balance, spec.seed, lambda at: progress("learn levels", at, len(codes))
    )
    space = spec.sid_space or default_space(out, codebook)
    tokens, report = _encode(items, len(ids), codebook, space, progress)
    facts = CodebookFacts(
        format=1,
        sid_space=space,
        vocab_sizes=codes,
        dims=items.dims,
        seed=spec.seed,
        balance=spec.balance,
        items=len(ids),
        sample=len(rows),
        errors=tuple(level.error for level in report.levels),
        digest="",
    )
    with whole_folder(out) as partial:
        write_codebook(partial, codebook, facts)
        write_sid_table(partial / SIDS_FILE, ids, tokens, space, codes)
        (partial / REPORT).write_text(json.dumps(report.to_json(), indent=1) + "\n")
        if out.exists():
            shutil.rmtree(out.resolve())
    return report


def give_sids(items: Items, kept: Path, out: Path | None, progress: Progress) -> SidReport:
    """Give these items SIDs by the codebook of `kept`, and write them to `out`.

    Without `out`, add them to the codebook's own table, which the caller has locked.
    """
    codebook, facts = read_codebook(kept)
    items = replace(items, dims=facts.dims)
    ids = _read(items, None, progress)
    tokens, report = _encode(items, len(ids), codebook, facts.sid_space, progress)
    if out is None:
        out = kept / SIDS_FILE
        before, tokens_before = read_sids(out, facts)
        if before.type != ids.type:
            own, its = (str(each.type).removeprefix("large_") for each in (ids, before))
            raise InputError(
                f"{items.name}: its ids are {own}, but those of {kept} are {its}; write them in "
                f"the type of {kept}"
            )
        ids, tokens = pa.concat_arrays([before, ids]), np.concatenate([tokens_before, tokens])
    write_sid_table(out, ids, tokens, facts.sid_space, facts.vocab_sizes)
    return report


class Sample:
    """Keeps some rows of a stream, drawn evenly, in random order: those with the lowest keys."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._rng = np.random.default_rng(seed)
        self._keys: list[Float64] = []
        self._rows: list[Vectors] = []

    def add(self, vectors: Vectors) -> None:
        self._keys.append(self._rng.random(len(vectors)))
        self._rows.append(vectors)
        if sum(map(len, self._keys)) > 2 * self._size:
            self._cut()

    def rows(self) -> Vectors:
        self._cut()
        return self._rows[0]

    def _cut(self) -> None:
        keys = np.concatenate(self._keys)
        order = np.argsort(keys, kind="stable")[: self._size]
        self._keys, self._rows = [keys[order]], [np.concatenate(self._rows)[order]]


def _read(items: Items, sample: Sample | None, progress: Progress) -> Ids:
    """Check every item."""
    parts: list[Ids] = []
    rows, done = sum(file.count_rows() for file in items.files), 0
    for ids, vectors in items.batches():
        parts.append(ids)
        if sample is not None:
            sample.add(vectors)
        done += len(ids)
        progress("read items", done, max(done, rows))
    if not done:
        raise InputError(f"{items.name}: no rows; there are no items to give SIDs to")
    require_ids(done, "items")
    ids = pa.concat_arrays(parts)
    if repeat := first_repeat(ids):
        raise InputError(f"{items.name}: item {repeat[0]} is {repeat[1]}; give each item once")
    return ids


def _encode(
    items: Items, count: int, codebook: Codebook, sid_space: str, progress: Progress
) -> tuple[Tokens, SidReport]:
    tokens = np.empty((count, len(codebook.codes)), np.uint16)
    errors = np.zeros(len(codebook.codes))
    total, squares, done = np.zeros(items.dims), 0.0, 0
    for ids, vectors in items.batches():
        begin, done = done, done + len(ids)
        if done > count:
            raise InputError(f"{items.name}: has more rows than when it was first read")
        tokens[begin:done], left = codebook.encode(vectors)
        errors += left
        total += vectors.sum(axis=0, dtype=np.float64)
        squares += float(np.einsum("ij,ij->", vectors, vectors, dtype=np.float64))
        progress("give SIDs", done, count)
    if done < count:
        raise InputError(f"{items.name}: has fewer rows than when it was first read")
    spread = squares - float(total @ total) / count
    spread = spread if spread > 1e-12 * squares else 0.0  # rounding: all vectors are equal
    left = tuple(errors.tolist())
    return tokens, report_of(sid_space, tokens, codebook.codes, left, spread)


def _require_room(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder")
    if not force and out.exists() and any(out.iterdir()):
        raise InputError(
            f"--out {out} is already there; `grace build` gives new ads SIDs by it; to make "
            "another codebook, choose a new folder, or --force to replace this one"
        )
    for file in out.iterdir() if out.exists() else ():
        if file.name not in FILES and not file.name.startswith(f".{SIDS_FILE}."):  # of a killed run
            raise InputError(
                f"--out {out} holds {file.name}, which is not part of a codebook; move it away"
            )
