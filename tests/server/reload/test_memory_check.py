"""A load compares what it needs with what there is, before it allocates anything."""

from pathlib import Path

import pytest
import torch

from grace.configs.eligibility import EXACT, Eligibility
from grace.index.matchers.node_matchers import Matchers
from grace.index.snapshot import bytes_of
from grace.index.storage import load_snapshot
from grace.index.storage.reader import open_snapshot
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, UserTensors, load_ops, with_eligible
from grace.server.engine.memory import MARGIN_BYTES, host_rooms, memory_needed
from support.forgery import make_version

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
GIB = 1 << 30


def test_the_needed_memory_is_what_a_load_takes(tmp_path: Path) -> None:
    make_version(tmp_path)
    with open_snapshot(tmp_path, 1) as opened:
        manifest = opened.manifest
    for text in ("cd", "exact", "union"):
        eligibility = Eligibility.of(text)
        snapshot = load_snapshot(tmp_path, 1, eligibility=eligibility, threads=1)
        index = DecodeIndex.of(snapshot, CPU)
        rules, lists, matchers = snapshot.rules, snapshot.exact, snapshot.matchers
        derived = bytes_of((lists, matchers))
        rows = 0 if matchers is None else bytes_of(matchers) - _bytes_of_ids(matchers)
        of_rules = (rules.rows, tuple(part for part in rules.parts if not part.has_values))
        of_trie = index.node_offsets.nbytes + index.csr_tokens.nbytes
        used = of_trie + derived + (0 if lists is None else bytes_of(of_rules))
        needed = memory_needed(manifest, eligibility, GPU, max_batch=16)
        pairs = 0 if lists is None else 4 * manifest.counts.ad_rules - lists.leaf_rules.nbytes
        assert needed.device == used - rows + pairs + needed.masks
        assert memory_needed(manifest, eligibility, CPU, max_batch=16).device == 0
        arrays = sum(entry.data_bytes for entry in manifest.files)
        host = needed.host - MARGIN_BYTES
        assert host >= arrays + index.csr_tokens.nbytes + derived - rows


def _bytes_of_ids(matchers: Matchers) -> int:
    return sum(rows.index.nbytes for rows in (matchers.bitmask, *(b.rows for b in matchers.blooms)))


@pytest.mark.parametrize("max_batch", [1, 16, 17])
def test_the_masks_of_requests_a_load_and_an_explanation_are_counted(
    max_batch: int, tmp_path: Path
) -> None:
    make_version(tmp_path)
    with open_snapshot(tmp_path, 1) as opened:
        manifest = opened.manifest
    snapshot = load_snapshot(tmp_path, 1, threads=1)
    index, ops = DecodeIndex.of(snapshot, CPU), load_ops(CPU)
    users = UserEncoder(snapshot.schema, snapshot.set_values)

    def masks(requests: int) -> tuple[int, int]:
        """Those of nodes and rules, and of the rows that they are made from."""
        batch = UserTensors.of(users.read([], requests, now=0).rows, CPU)
        made, exact = with_eligible(batch, index, ops).eligible, index.exact
        assert made is not None
        assert exact is not None
        return made.nbytes, sum(each.passes(batch).nbytes for each in exact.predicates)

    (nodes, rows), (of_one, rows_of_one) = masks(max_batch), masks(1)
    # A batch in each of features, generate and post; a checkpoint that warms up; an explanation.
    at_once = 3 * nodes + nodes + of_one
    at_once += rows + rows + rows_of_one  # of a batch, of the checkpoint and of the explanation
    assert memory_needed(manifest, EXACT, CPU, max_batch).masks >= at_once


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def rooms(proc: Path, cgroups: Path) -> dict[str, float]:
    """GiB by limit, of the machine and its control groups."""
    found = host_rooms(proc, cgroups)
    return {room.limit: room.bytes / GIB for room in found if "RLIMIT" not in room.limit}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    write(folder, meminfo=f"MemTotal: 99 kB\nMemAvailable:  {7 << 20} kB\nSwapFree: 1 kB\n")
    write(folder / "self", statm="100 10 1 1 0 1 0\n")
    return folder


def test_the_tightest_control_group_counts_and_its_page_cache_does_not(
    proc: Path, tmp_path: Path
) -> None:
    write(proc / "self", cgroup="0::/outer/inner\n")
    groups = tmp_path / "groups"
    stat = f"anon {GIB}\nactive_file {GIB}\ninactive_file {GIB // 2}\n"
    write(groups / "outer", memory__max=f"{4 * GIB}\n", memory__current=f"{3 * GIB}\n")
    write(groups / "outer", memory__stat=stat)
    write(groups / "outer" / "inner", memory__max="max\n", memory__current=f"{2 * GIB}\n")
    assert rooms(proc, tmp_path / "none") == {"the machine's MemAvailable": 7}
    assert rooms(proc, groups) == {
        "the machine's MemAvailable": 7,
        "the control group's memory.max": 2.5,
    }
