"""The memory that a snapshot or a model needs, and the memory that this process can still get.

A load compares the two before it allocates anything. Later the kernel would not refuse the memory,
but kill the server.
"""

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from grace.configs.eligibility import Eligibility, MatcherMode
from grace.configs.errors import CheckpointError, ConfigError, SnapshotError
from grace.configs.serving import ServingConfig
from grace.index.allocation import free_kept
from grace.index.snapshot import Snapshot, bytes_of
from grace.index.storage.arrays import counts_of
from grace.index.storage.manifest import MANIFEST, Counts, Manifest
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, Ops, UserTensors, with_eligible
from grace.kernels.eligibility.tensors import REQUESTS_PER_MASK
from grace.model.checkpoints.folder import MODEL_YAML, WEIGHTS, load_spec, require_files
from grace.model.definition.causal_spec import CausalModelSpec
from grace.model.engine.causal.memory import memory_on_cpu, memory_on_gpu
from grace.model.engine.precision import Precision

MARGIN_BYTES = 64 << 20
"""The most that the first batches and the allocator take in addition to the arrays."""

BATCHES_WITH_MASKS = 5
"""The most batches whose masks of eligible nodes are in memory at once. Three have requests: one is
prepared, one generates and one is answered. One warms up for a load, and one explains an ad."""

BATCHES_MADE = 3
"""The most batches whose masks are being made: of requests, of a load and of an explanation."""

_VALUE_BYTES = 80  # for each set value, in the hash table that finds it, and its hash
_ID_BYTES = 4
_OFFSET_BYTES = 8  # of posting lists
_ROW_BYTES = 8  # to read a byte of a row that is put: as text, as columns, and as rules
_MASK_BYTES = 2  # for each node and 16 requests
_MORE = "give the server more memory"
_HOST = torch.device("cpu")
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Needed:
    """The bytes that a load takes at its peak, of the machine's memory and of the GPU's."""

    host: int
    device: int
    masks: int  # how many of either are masks of eligible nodes


@dataclass(frozen=True, slots=True)
class Room:
    """The bytes that one limit still allows."""

    limit: str
    bytes: int


_LISTED = ("set_include_values.", "set_exclude_values.", "set_group_values.", "property_values.")
"""Posting lists invert the files whose names begin with one of these."""


def memory_needed(
    manifest: Manifest, eligibility: Eligibility, device: torch.device, max_batch: int
) -> Needed:
    """Return what a load takes at most or, in the modes with rows, at least.

    How many rows a catalogue has shows only when they are made.
    """
    counts, sizes = manifest.counts, {entry.file: entry.data_bytes for entry in manifest.files}
    entries, kinds = sum(counts.nodes_per_level[1:]), 1 + len(manifest.schema.sets)
    trie = sizes["node_offsets.npy"] + entries * _ID_BYTES  # tokens are widened to int32
    values = sum(counts.values.values()) * _VALUE_BYTES
    host = sum(sizes.values()) + entries * _ID_BYTES + values + MARGIN_BYTES
    on_device = device.type == "cuda"
    if eligibility.mode is not MatcherMode.EXACT:
        ids = 0 if eligibility.mode is MatcherMode.CD else kinds * entries * _ID_BYTES
        return Needed(host + ids, trie + ids if on_device else 0, 0)
    pairs = counts.ad_rules * _ID_BYTES  # at most: ads of a leaf may share rules
    lists = (counts.nodes_per_level[-1] + 1) * _ID_BYTES + pairs
    offsets = {name: (count + 1) * _OFFSET_BYTES for name, count in counts.values.items()}
    lists += sum(offsets.values()) + sum(offsets[each.name] for each in manifest.schema.sets)
    lists += sum(size for file, size in sizes.items() if file.startswith(_LISTED))
    rules = sum(size for file, size in sizes.items() if file.startswith("rule_"))
    masks = mask_bytes(counts, max_batch)
    # The lists are made with room for the rules of all ads. On a CPU, stops need a copy of them.
    if on_device:
        return Needed(host + lists + pairs, trie + lists + rules + masks, masks)
    return Needed(host + lists + pairs + masks, 0, masks)


def mask_bytes(counts: Counts, max_batch: int) -> int:
    """Return the most memory of masks of inner nodes and rules, and of the rows of these.

    An explanation has one request, and counts as a whole batch.
    """
    kept = sum(counts.nodes_per_level[:-1]) + counts.rules + 1
    masks = BATCHES_WITH_MASKS * kept + BATCHES_MADE * counts.rows
    return masks * _MASK_BYTES * -(-max_batch // REQUESTS_PER_MASK)


def require_memory(
    manifest: Manifest, eligibility: Eligibility, device: torch.device, max_batch: int
) -> None:
    """Raise SnapshotError if the snapshot does not fit in addition to what is loaded now."""
    needed = memory_needed(manifest, eligibility, device, max_batch)
    if fault := _shortage(needed.host) or _shortage(needed.device, device):
        less = f"lower generation.max_batch (now {max_batch}), set eligibility: union, "
        less = less if needed.masks else ""
        raise SnapshotError(MANIFEST, f"{fault}; publish a smaller version, {less}or {_MORE}")


def require_memory_of_changes(snapshot: Snapshot, row_bytes: int, device: torch.device) -> None:
    """Raise ConfigError if a second snapshot of this size, with the new rows, does not fit."""
    needed = bytes_of(snapshot) + row_bytes * _ROW_BYTES + MARGIN_BYTES
    if needed > _host_room().bytes:
        free_kept()
    fault = _shortage(needed)
    if device.type == "cuda" and not fault:
        trie, parts = snapshot.trie, (snapshot.rules, snapshot.matchers, snapshot.exact)
        needed = bytes_of((trie, *parts)) + len(trie.csr_tokens) * _ID_BYTES + row_bytes
        fault = _shortage(needed, device)
    if fault:
        remedy = "publish a snapshot with fewer ads, or give the server more memory"
        raise ConfigError(f"puts and removals: {fault}; {remedy}")


def require_memory_of_model(
    config: ServingConfig, precision: Precision, device: torch.device
) -> None:
    """Raise CheckpointError if a model does not fit. For the T5 family, only weights count."""
    folder = config.checkpoint
    require_files(folder)
    needed = stored = (folder / WEIGHTS).stat().st_size
    spec, less = load_spec(folder / MODEL_YAML), ""
    if isinstance(spec, CausalModelSpec):
        less = (
            f"lower generation.max_batch (now {config.generation.max_batch}) or "
            f"prompt.max_tokens in {MODEL_YAML} (now {spec.prompt.max_tokens}), "
        )
        if device.type == "cuda":
            needed = memory_on_gpu(spec, config.generation, precision, stored)
        else:
            needed = memory_on_cpu(spec, config.generation)
    if fault := _shortage(needed, device):
        fault = f"{fault}; {less}load a smaller checkpoint, or {_MORE}"
        raise CheckpointError(str(folder / WEIGHTS), fault)


def host_rooms(proc: Path = PROC, cgroups: Path = CGROUPS) -> list[Room]:
    """Return the room that each limit leaves to this process. At least one limit applies."""
    rooms = [Room("the machine's MemAvailable", _available(proc))]
    rooms += _cgroup_rooms(proc, cgroups)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        pages = int((proc / "self/statm").read_text().split()[0])
        used = pages * os.sysconf("SC_PAGE_SIZE")
        rooms.append(Room("the address space, RLIMIT_AS", max(0, limit - used)))
    return rooms


def _shortage(needed: int, device: torch.device = _HOST) -> str:
    """Return the fault if the device's memory has too little room, or else an empty text."""
    on_device = device.type == "cuda"
    what = f"memory of {device}" if on_device else "memory"
    room = _device_room(device, needed) if on_device else _host_room()
    if needed <= room.bytes:
        return ""
    return (
        f"a load needs {needed / 1e9:.2f} GB of {what}, and there is room for "
        f"{room.bytes / 1e9:.2f} GB (limit: {room.limit})"
    )


def _host_room() -> Room:
    return min(host_rooms(), key=lambda room: room.bytes)


def _available(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _cgroup_rooms(proc: Path, cgroups: Path) -> list[Room]:
    """Return the room in this process's control group and in the groups that contain it."""
    own = next((line for line in _text(proc / "self/cgroup").splitlines() if line[:3] == "0::"), "")
    if not own:
        return []
    # In a container, the path may be the host's. Then the group itself is mounted at `cgroups`.
    group = cgroups / own[3:].lstrip("/")
    folders = [each for each in (group, *group.parents) if each.is_relative_to(cgroups)]
    return [room for folder in folders for room in _group_room(folder)]


def _group_room(folder: Path) -> list[Room]:
    limit = _text(folder / "memory.max").strip()
    usage = _text(folder / "memory.current").strip()
    if not limit.isdigit() or not usage.isdigit():  # the limit may be "max"
        return []
    stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
    # The kernel frees the page cache before it kills a process.
    files = sum(int(stat.get(f"{kind}_file", 0)) for kind in ("active", "inactive"))
    room = int(limit) - max(0, int(usage) - files)
    return [Room("the control group's memory.max", max(0, room))]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _device_room(device: torch.device, needed: int) -> Room:
    free, _ = torch.cuda.mem_get_info(device)
    if needed > free:
        torch.cuda.empty_cache()  # earlier snapshots leave memory there; may delay live batches
        free, _ = torch.cuda.mem_get_info(device)
    return Room(f"the free memory of {device}", free)


@dataclass(frozen=True, slots=True)
class EligibilityFacts:
    """The cost of mode `exact`; all 0 in other modes."""

    eligibility_list_bytes: int = 0  # of the lists that masks are made from
    eligibility_mask_bytes: int = 0  # of the most masks of batches that are in memory at once
    # to make the masks of a full batch, whose users have no values of sets
    eligibility_ms: float = 0.0


def eligibility_facts(
    snapshot: Snapshot, index: DecodeIndex, users: UserEncoder, ops: Ops, max_batch: int
) -> EligibilityFacts:
    """Measure on the current stream. The first batch also pays for memory, so the second counts."""
    if snapshot.exact is None:
        return EligibilityFacts()
    device = index.node_offsets.device
    batch = UserTensors.of(users.read([], max_batch, now=0).rows, device)
    seconds = 0.0
    for _ in range(2):
        begin = perf_counter()
        with_eligible(batch, index, ops)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        seconds = perf_counter() - begin
    rules = snapshot.rules
    tables = tuple(rows for rows in rules.parts if not rows.has_values)
    lists = bytes_of((snapshot.exact, rules.rows, tables))
    return EligibilityFacts(lists, mask_bytes(counts_of(snapshot), max_batch), seconds * 1e3)
