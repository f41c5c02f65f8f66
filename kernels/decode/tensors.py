"""The values that operations take and return.

Rows are flat and request-major: beam m of request b is row b * M + m. 64-bit words and hashes are
int64 tensors with the same bits, since torch computes little on uint64; tokens are int32.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.configs.arrays import Int32
from grace.configs.errors import ConfigError
from grace.index.snapshot import Snapshot
from grace.index.trie import NO_NODE
from grace.kernels.decode.needed_rows import needed_rows
from grace.kernels.decode.users import on_device
from grace.kernels.devices import require_device, staged_copy
from grace.kernels.eligibility.plan import EligibilityPlan
from grace.kernels.eligibility.predicates import exact_tensors
from grace.kernels.eligibility.tensors import ExactTensors

MOST_SETS_ON_GPU = 8
"""The most targeting sets that admission on a GPU tests: kMostSets of grace/admission.h."""


@dataclass(frozen=True, slots=True)
class BloomTensors:
    """One set's Bloom rows."""

    index: Tensor  # int32 [child entries], or [ids] with offsets
    table: Tensor  # int64 [rows, bits / 64]
    star: Tensor  # uint8 [rows]
    bits: int
    hashes: int
    # int32 [child entries + 1]; None where every entry has one row, as in mode `union`
    offsets: Tensor | None = None


@dataclass(frozen=True)
class DecodeIndex:
    """A snapshot's trie and matchers on one device; see index/trie.py for the numbering.

    In the k-way modes an entry has several row ids: entry j has offsets[j] .. offsets[j + 1]. They
    are the rows of the snapshot that can decide (kernels/decode/needed_rows.py).
    """

    vocab_sizes: tuple[int, ...]
    first_leaf: int
    node_offsets: Tensor  # int32 [internal nodes + 1]
    csr_tokens: Tensor  # int32 [child entries]
    bitmask_index: Tensor | None = None  # int32 [child entries]
    bitmask_table: Tensor | None = None  # int64 [rows, words]; None in mode `cd`
    blooms: tuple[BloomTensors, ...] = ()
    bitmask_offsets: Tensor | None = None  # int32 [child entries + 1], like a set's offsets
    exact: ExactTensors | None = None  # in mode `exact`

    @staticmethod
    def of(snapshot: Snapshot, device: torch.device) -> "DecodeIndex":
        """Copy a snapshot to a device; raise ConfigError if the device cannot decode with it."""
        require_device(device)
        trie, matchers = snapshot.trie, snapshot.matchers
        names = [target_set.name for target_set in snapshot.schema.sets]
        if matchers is not None and device.type == "cuda" and len(names) > MOST_SETS_ON_GPU:
            raise ConfigError(
                f"sets: the snapshot's schema has {len(names)}, {', '.join(names)}; device "
                f"{device} tests at most {MOST_SETS_ON_GPU} while decoding: build with fewer or in "
                "mode cd, or use device cpu"
            )
        index = DecodeIndex(
            vocab_sizes=trie.vocab_sizes,
            first_leaf=trie.first_leaf,
            node_offsets=staged_copy(trie.node_offsets, device),
            csr_tokens=staged_copy(trie.csr_tokens, device).to(torch.int32),
        )
        if snapshot.exact is not None:
            return replace(index, exact=exact_tensors(snapshot, snapshot.exact, device))
        if matchers is None:
            return index
        bitmask_index, bitmask_offsets = _row_ids(device, *needed_rows(matchers.bitmask, trie))
        blooms = []
        for target_set, bloom in zip(snapshot.schema.sets, matchers.blooms, strict=True):
            own, offsets = _row_ids(device, *needed_rows(bloom.rows, trie, bloom.star))
            table, star = _words(bloom.rows.table, device), staged_copy(bloom.star, device)
            bits, hashes = target_set.bloom_bits, target_set.bloom_hashes
            blooms.append(BloomTensors(own, table, star, bits, hashes, offsets))
        return replace(
            index,
            bitmask_index=bitmask_index,
            bitmask_table=_words(matchers.bitmask.table, device),
            blooms=tuple(blooms),
            bitmask_offsets=bitmask_offsets,
        )

    @cached_property
    def eligibility_plan(self) -> EligibilityPlan:
        """The plan by which native code makes the masks of mode `exact`, from its first use on."""
        assert self.exact is not None  # `require_eligibility` comes before
        return EligibilityPlan(self.exact, self.node_offsets)

    def leaves_of(self, nodes: Tensor) -> Tensor:
        """Return the leaf numbers of nodes of the last level; NO_NODE stays."""
        return (nodes - self.first_leaf).clamp(min=NO_NODE)

    def without_matchers(self) -> "DecodeIndex":
        """Return the same catalogue in mode `cd`: every valid token is admitted."""
        return DecodeIndex(self.vocab_sizes, self.first_leaf, self.node_offsets, self.csr_tokens)

    def write_pairs(self, positions: npt.NDArray[np.int64], rules: npt.NDArray[np.int32]) -> None:
        """Set the rules of some pairs of leaf and rule; return when the device has them.

        index/matchers/exact_lists.py says which pairs change when ads are stopped or resumed. Each
        is one aligned word, which a batch under way reads in its old or its new state. The next
        batch, and the next change, may be on another stream, so this waits for its own.
        (A new stream for each change would in time be one that records a graph: torch has 32.)
        """
        if self.exact is None:
            raise ValueError("index: only mode exact has pairs to write: use such a snapshot")
        leaf_rules = self.exact.leaf_rules
        if positions.size == 0:
            return
        if positions.min() < 0 or positions.max() >= len(leaf_rules):
            raise ValueError(
                f"positions: {positions.min()} to {positions.max()}, the snapshot has pairs 0 to "
                f"{len(leaf_rules) - 1}: take them from the snapshot of this index"
            )
        at = on_device(torch.from_numpy(positions), leaf_rules.device)
        leaf_rules[at] = on_device(torch.from_numpy(rules), leaf_rules.device)
        if leaf_rules.device.type == "cuda":
            torch.cuda.current_stream(leaf_rules.device).synchronize()


@dataclass(frozen=True, slots=True)
class Candidates:
    """The admitted children of all beam rows, row by row, tokens ascending within a row."""

    offsets: Tensor  # int32 [rows + 1]: row r has the places offsets[r] .. offsets[r + 1]
    tokens: Tensor  # int32 [n]
    nodes: Tensor  # int32 [n]: the child's node
    # int32 [rows], if given, only the first counts[r] places of row r are candidates: a captured
    # step knows its room in advance, not how many it admits
    counts: Tensor | None = None

    def packed(self) -> "Candidates":
        """Return the same without room between rows; on a GPU this waits for the device."""
        if self.counts is None:
            return self
        _, kept = members_of(self.offsets[:-1], self.counts)
        ends = self.counts.cumsum(0, dtype=torch.int32)
        offsets = torch.cat([ends.new_zeros(1), ends])
        return Candidates(offsets, self.tokens[kept], self.nodes[kept])


@dataclass(frozen=True, slots=True)
class Beams:
    """The live prefixes after a step, [B, M] each. A dead beam has score -inf and node NO_NODE."""

    # int32: the flat row of the previous step that a beam continues; any row if dead
    parents: Tensor
    tokens: Tensor  # int32: the token it appends; 0 if dead
    nodes: Tensor  # int32
    scores: Tensor  # float32
    corrupt: Tensor  # bool [B]: the request's numbers were not finite, so all its beams are dead


def members_of(first: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return each member of ranges, after its range: range i has first[i] .. first[i] + counts[i].

    int32 [m], int32 [m] -> 2 x int64 [n]
    """
    ranges = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    begins = counts.cumsum(0) - counts
    return ranges, (first - begins)[ranges] + torch.arange(len(ranges), device=counts.device)


def _row_ids(
    device: torch.device, ids: Int32, offsets: Int32 | None
) -> tuple[Tensor, Tensor | None]:
    return staged_copy(ids, device), None if offsets is None else staged_copy(offsets, device)


def _words(array: npt.NDArray[np.uint64], device: torch.device) -> Tensor:
    return staged_copy(array.view(np.int64), device)
