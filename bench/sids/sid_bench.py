"""Measure `grace sids`: the hierarchy that it finds, its speed, and a model's recall on its SIDs.

python -m grace.bench.sids.sid_bench --out bench/results/cpu-2core/sids.json

`hierarchy`  items of a known tree: normalised mutual information of prefixes and nodes
`speed`      2 million vectors of 128 numbers: seconds and peak memory of the whole command
`recall`     models trained on the SIDs that `grace sids` gives catalogues' vectors, compared with
             models trained on the catalogues' original SIDs
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from grace.bench.result_file import facts_of, record
from grace.bench.sids.vectors import mixed_items, mutual_information, prefix_numbers, tree_items
from grace.catalogues.folder import sid_column, sid_metadata
from grace.catalogues.synth import make_catalogue, preset_spec, write_folder
from grace.catalogues.synth.learned_tokens import item_vectors, number_duplicates
from grace.catalogues.synth.spec import Stream
from grace.index.codebook.codebook import Tokens, Vectors
from grace.index.tables.data_folder import ADS_FILE, LOG_FILE, TARGETING_FILE

GRACE = Path(sys.executable).with_name("grace")

Rows = Iterator[dict[str, Any]]
Sids = npt.NDArray[np.integer]

TREE_ITEMS, TREE_DIMS = 20_011, 64
BRANCHES, LENGTHS, NOISE = (64, 8, 4), (1.0, 0.6, 0.4), 0.2
TREE_CODES = (64, 64, 64)
SPEED_ITEMS, SPEED_DIMS, PART = 2_000_000, 128, 100_000
CATALOGUES, LOG_USERS, STEPS = 5, 13_000, 1000  # of `recall`


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=sorted(MEASURES), action="append", default=[])
    parser.add_argument("--add", action="store_true", help="keep the other rows of --out")
    options = parser.parse_args(arguments)
    chosen = options.only or list(MEASURES)
    rows = (row for name in chosen for row in MEASURES[name]())
    facts = facts_of("python -m grace.bench.sids.sid_bench", arguments)
    record(rows, options.out, facts, add=options.add, only=options.only)


def hierarchy() -> Rows:
    vectors, nodes = tree_items(TREE_ITEMS, TREE_DIMS, BRANCHES, LENGTHS, NOISE, seed=3)
    with tempfile.TemporaryDirectory(prefix="grace-sids-") as name:
        folder = Path(name)
        _write_items(folder / "vectors.parquet", [vectors])
        codes = ",".join(map(str, TREE_CODES))
        report = _sids(folder, "--levels", str(len(TREE_CODES)), "--codes", codes)
        tokens = _tokens(folder)
    for depth, level in enumerate(report["levels"]):
        agreement = mutual_information(prefix_numbers(tokens[:, : depth + 1]), nodes[:, depth])
        yield {
            "measure": "hierarchy",
            "step": depth + 1,
            "nodes": int(nodes[:, depth].max()) + 1,
            "nmi": round(agreement, 4),
            **level,
        }


def speed() -> Rows:
    with tempfile.TemporaryDirectory(prefix="grace-sids-") as name:
        folder = Path(name)
        parts = (
            mixed_items(min(PART, SPEED_ITEMS - first), SPEED_DIMS, seed=5, part=first)
            for first in range(0, SPEED_ITEMS, PART)
        )
        _write_items(folder / "vectors.parquet", parts)
        report = _sids(folder, "--levels", "4", "--codes", "512")
    yield {
        "measure": "speed",
        "values": SPEED_ITEMS,
        "dims": SPEED_DIMS,
        "sids": report["sids"],
        **{name: report[name] for name in ("seconds", "cpu_seconds", "peak_gb", "items_per_sid")},
        "levels": report["levels"],
    }


def recall() -> Rows:
    measured = [_recall_of(seed) for seed in range(1, CATALOGUES + 1)]
    cutoffs = list(measured[0]["true"]["recall"]["model"])
    users = [each["true"]["measured_users"] for each in measured]

    def values(name: str, k: str) -> npt.NDArray[np.float64]:
        return np.array([each[name]["recall"]["model"][k] for each in measured])

    for name in measured[0]:
        ratios = {k: values(name, k) / values("true", k) for k in cutoffs}
        yield {
            "measure": "recall",
            "variant": name,
            "sids": [each[name]["sids"] for each in measured],
            "steps": STEPS,
            "device": measured[0][name]["device"],
            "users": sum(users),
            "recall": {k: round(float(values(name, k).mean()), 4) for k in cutoffs},
            "of_true": {k: round(float(each.mean()), 3) for k, each in ratios.items()},
            "of_each": {k: each.round(3).tolist() for k, each in ratios.items()},
        }


def _recall_of(seed: int) -> dict[str, dict[str, Any]]:
    """Train on the original and on the learned SIDs of one catalogue; return both reports."""
    spec = replace(preset_spec("tiny", seed=seed), log_users=LOG_USERS)
    tree = make_catalogue(spec).tree
    with tempfile.TemporaryDirectory(prefix="grace-sids-") as name:
        folder = Path(name)
        true, learned = folder / "true", folder / "learned"
        write_folder(spec, true)
        vectors = item_vectors(tree, spec.rng(Stream.VECTORS))
        _write_items(folder / "vectors.parquet", [vectors.astype(np.float32)])
        report = _sids(folder, "--levels", "3", "--codes", "64")
        # The catalogue's SIDs are unique, so these must be too: items that share one are counted.
        unique = number_duplicates(_tokens(folder).astype(np.int64), 64)
        _rewrite(true, learned, tree.sids, unique, report["sid_space"])
        runs = {each.name: _training(each) for each in (true, learned)}
        return {name: json.loads(run.communicate()[0]) for name, run in runs.items()}


MEASURES: dict[str, Callable[[], Rows]] = {
    "hierarchy": hierarchy,
    "speed": speed,
    "recall": recall,
}


def _sids(folder: Path, *options: str) -> dict[str, Any]:
    """Run `grace sids` on the folder's vectors; return its report, its time and its memory."""
    files = ("--embeddings", folder / "vectors.parquet", "--out", folder / "codebook")
    printed = folder / "report.json"
    begin = perf_counter()
    with printed.open("w") as file:
        run = subprocess.Popen([GRACE, "sids", *files, "--json", *options], stdout=file)
        _, status, used = os.wait4(run.pid, 0)
    if status:
        raise SystemExit("grace sids failed")
    report: dict[str, Any] = json.loads(printed.read_text())
    return {
        **report,
        "seconds": round(perf_counter() - begin, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_gb": round(used.ru_maxrss * 1024 / 1e9, 2),
    }


def _tokens(folder: Path) -> Tokens:
    column = pq.read_table(folder / "codebook" / "sids.parquet").column("sid").combine_chunks()
    tokens: Tokens = column.flatten().to_numpy().reshape(len(column), -1)
    return tokens


def _write_items(path: Path, parts: Iterable[Vectors]) -> None:
    """Write vectors float32 [items, dims], a part at a time; their numbers name them."""
    writer, first = None, 0
    for vectors in parts:
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        ids = pa.array(np.arange(first, first + len(vectors)))
        table = pa.table({"item_id": ids, "vector": lists})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
        first += len(vectors)
    if writer is not None:
        writer.close()


def _rewrite(source: Path, target: Path, true: Tokens, learned: Sids, sid_space: str) -> None:
    """Copy a folder of data with other SIDs. true, learned [sids, tokens]; `true` ascends."""
    target.mkdir()
    (target / TARGETING_FILE).write_text((source / TARGETING_FILE).read_text())
    known = _sortable(true)
    for name in (ADS_FILE, LOG_FILE):
        table = pq.read_table(source / name)
        column = table.column("sid").combine_chunks()
        old = column.flatten().to_numpy().reshape(len(column), -1)
        new = np.ascontiguousarray(learned[np.searchsorted(known, _sortable(old))], np.uint16)
        at = table.schema.names.index("sid")
        table = table.set_column(at, "sid", sid_column(new))
        pq.write_table(
            table.replace_schema_metadata(sid_metadata(sid_space, (64, 64, 64, 64))), target / name
        )


def _sortable(sids: Sids) -> npt.NDArray[np.bytes_]:
    return np.ascontiguousarray(sids, ">u2").view(f"S{2 * sids.shape[1]}")[:, 0]


def _training(data: Path) -> subprocess.Popen[str]:
    out = data.with_name(f"{data.name}-model")
    command = [GRACE, "train", "--data", data, "--out", out]
    command += ["--steps", STEPS, "--json"]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main(sys.argv[1:])
