"""One constrained step of other programs: STATIC, RecTokens and FlashRec, each by its own code.

An adapter builds a program's own index of the catalogue, and passes it the engine's beams and
logits. The adapter adds, in torch and as the program itself writes it, what a program leaves to
its caller: STATIC's dense positions, say, and every top k.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.bench.result_file import commit
from grace.configs.errors import InputError
from grace.index.trie import SidTrie
from grace.kernels import DecodeIndex

WITH_HEAD = "with the head"
"""A form of a step that begins at the factors of its logits."""

_DENSE_LEVELS = 2


class KeptBeams(NamedTuple):
    """[B, k] each; beams of score -inf mean nothing. `parents` are flat rows, and `states` are the
    program's own numbers of nodes."""

    parents: Tensor
    tokens: Tensor
    scores: Tensor
    states: Tensor


@dataclass(frozen=True, slots=True)
class PeerStep:
    """
    nodes         int64 [B * M]: the engine's numbers; a dead beam is at the root
    logits        float32 [B * M, V]
    scores        float32 [B, M], -inf of a dead beam
    hidden, head  [B * M, d], [V, d]: the factors of other logits
    """

    number: int
    nodes: Tensor
    logits: Tensor
    scores: Tensor
    k: int
    hidden: Tensor
    head: Tensor


@dataclass(frozen=True)
class PeerCatalogue:
    trie: SidTrie
    index: DecodeIndex
    vocabulary: int

    @cached_property
    def edges(self) -> Tensor:
        """int64, ascending: node * V + token of every child. Child j is node j + 1."""
        fan_outs = self.index.node_offsets.diff()
        owners = torch.arange(len(fan_outs), device=fan_outs.device).repeat_interleave(fan_outs)
        return owners * self.vocabulary + self.index.csr_tokens

    def sids(self) -> npt.NDArray[np.uint16]:
        """[SIDs, L], sorted"""
        return self.trie.sids(np.arange(self.trie.num_leaves))


class Peer(ABC):
    """A program. With `sums_children`, it normalises over a beam's children, in bf16."""

    name: str
    version: str
    sums_children = False

    def states(self, number: int, nodes: Tensor) -> Tensor:  # noqa: ARG002 (of all programs)
        """Return the program's numbers of nodes with `number` tokens."""
        return nodes

    @abstractmethod
    def calls(self, given: PeerStep) -> dict[str, Callable[[], KeptBeams]]:
        """Return the step in each form that the program has for these beams, by a name."""


class Absent(NamedTuple):
    name: str
    reason: str


def found_peers(static: Path | None, catalogue: PeerCatalogue) -> Iterator[Peer | Absent]:
    """Yield each program, built when it is asked for, or say what is missing."""
    for build in (partial(Static, static), RecTokens, FlashRec):
        name = getattr(build, "name", Static.name)
        try:
            peer: Peer = build(catalogue)
        except ModuleNotFoundError as error:
            yield Absent(name, f"{error.name} is missing: pip install --no-deps {error.name}")
        except (ImportError, OSError) as error:
            yield Absent(name, str(error))
        else:
            yield peer
            if isinstance(peer, FlashRec) and not peer.fuses:
                missing = "needs a GPU, nvcc, and: pip install --no-deps apache-tvm-ffi ninja"
                yield Absent("FlashRec, fused", missing)


def _kept(given: PeerStep, totals: Tensor, tokens: Tensor, states: Tensor) -> KeptBeams:
    """Add the beams' scores and keep the k best of each request.   3 x [B * M, candidates]"""
    (requests, beams), each = given.scores.shape, totals.shape[1]
    summed = (totals.view(requests, beams, each) + given.scores.unsqueeze(2)).flatten(1)
    scores, places = summed.topk(min(given.k, summed.shape[1]), dim=1)
    first_rows = torch.arange(requests, device=places.device).unsqueeze(1) * beams
    tokens, states = (x.view(requests, -1).gather(1, places) for x in (tokens, states))
    return KeptBeams(places // each + first_rows, tokens, scores, states)


class Static(Peer):
    """A mask at the dense positions, and below them STATIC's `generate_and_apply_logprobs_mask`.

    The step is compiled, as in STATIC's own benchmark. No graph could record it otherwise: it
    copies a number from the host.
    """

    name = "STATIC"

    def __init__(self, root: Path | None, catalogue: PeerCatalogue) -> None:
        if root is None:
            raise ImportError("name a checkout of its repository by --static PATH")
        if not (root / "static_decoding" / "decoding_pt.py").is_file():
            raise InputError(
                f"--static {root}: has no static_decoding/decoding_pt.py; give a checkout of "
                "https://github.com/youtube/static-constraint-decoding"
            )
        sys.path.insert(0, str(root))
        try:
            decoding = import_module("static_decoding.decoding_pt")
            build = import_module("static_decoding.csr_utils").build_static_index
        finally:
            sys.path.remove(str(root))
        self.version, device = commit(root), catalogue.index.csr_tokens.device
        self._mask = decoding.generate_and_apply_logprobs_mask
        self._index, self._vocabulary = catalogue.index, catalogue.vocabulary
        built = build(catalogue.sids(), self._vocabulary, _DENSE_LEVELS)
        arrays = (torch.from_numpy(x).to(device) for x in (*built[:2], *built[3:]))
        self._packed, self._offsets, *dense = arrays
        self._first, self._pairs, self._pair_states = dense
        self._widest = [int(each) for each in built[2]]

    def states(self, number: int, nodes: Tensor) -> Tensor:
        if number == 1:
            return self._index.csr_tokens[(nodes - 1).clamp(min=0)].long() + 1
        if number == len(self._widest):
            return torch.zeros_like(nodes)
        return nodes + (self._vocabulary - self._index.node_offsets[1])

    def calls(self, given: PeerStep) -> dict[str, Callable[[], KeptBeams]]:
        states, step = self.states(given.number, given.nodes), self._step
        if given.logits.is_cuda:
            torch.compiler.reset()
            step = torch.compile(step, dynamic=False, fullgraph=True)
        return {"compiled": partial(step, given, states)}

    def _step(self, given: PeerStep, states: Tensor) -> KeptBeams:
        probabilities, limit = given.logits.log_softmax(dim=-1), self._widest[given.number]
        if given.number >= _DENSE_LEVELS:
            packed, offsets, device = self._packed, self._offsets, states.device
            kept = self._mask(
                probabilities, states, packed, offsets, limit, self._vocabulary, device
            )
            return _kept(given, *kept)
        allowed = self._pairs[states - 1] if given.number else self._first
        totals, tokens = torch.where(allowed, probabilities, -torch.inf).topk(limit)
        onward = self._pair_states[states.unsqueeze(1) - 1, tokens] if given.number else tokens + 1
        return _kept(given, totals, tokens, onward)


class RecTokens(Peer):
    """A fused product with the head, at the positions below the dense ones.

    RecTokens normalises over a beam's children instead of all tokens, and computes no other logits.
    Its own step finds the next nodes by a mask, which waits for the GPU. Here, a gather finds them.
    """

    name, sums_children = "RecTokens", True

    def __init__(self, catalogue: PeerCatalogue) -> None:
        self.version = version("rectokens")
        try:
            ops = import_module("rectokens.ops.constrained_node_transition")
        except AssertionError as error:  # it asks for a GPU
            raise ImportError(str(error)) from None
        self._fused = ops.fused_linear_constrained_node_transition_topk
        self._state = import_module("rectokens.schemas.state").ConstraintState
        sids = torch.from_numpy(catalogue.sids()).to(catalogue.index.csr_tokens.device).long()
        tries = import_module("rectokens.schemas.compact_csr_trie").CompactCSRTrie
        self._trie = tries.from_sorted_batch(sids, catalogue.vocabulary, _DENSE_LEVELS)

    def calls(self, given: PeerStep) -> dict[str, Callable[[], KeptBeams]]:
        return {WITH_HEAD: partial(self._step, given)} if given.number >= _DENSE_LEVELS else {}

    def _step(self, given: PeerStep) -> KeptBeams:
        state = self._state(given.number, self._trie, given.nodes)
        every = self._trie.layer_max_branches[given.number]
        nodes, _, logits, tokens = self._fused(given.hidden, given.head.t(), state, every)
        return _kept(given, logits.log_softmax(dim=-1), tokens, nodes)


class FlashRec(Peer):
    """An expansion of sorted log-probabilities, over a dense table of nodes and tokens.

    Its CUDA kernel takes at most 512 beams. Where the kernel cannot run, FlashRec computes the same
    in torch. It keeps as many beams as it gets, so its first position is part of the prefill.
    """

    name = "FlashRec"

    def __init__(self, catalogue: PeerCatalogue) -> None:
        self._kernel = import_module("flashrec.kernel.beam_trie")
        self.version, self._workspace = version("flashrec"), self._kernel.GenrecFusedWorkspace()
        self._edges, self._inner = catalogue.edges, catalogue.index.first_leaf
        self._length, self._vocabulary = catalogue.trie.sid_length, catalogue.vocabulary
        self.fuses = bool(self._kernel.try_load_beam_trie())

    @cached_property
    def _table(self) -> dict[str, Any]:
        """Return whether each token continues each node, and the node that it leads to.

        FlashRec makes the table from Python tuples, which takes minutes for millions of SIDs.
        """
        shape, device = (self._inner + 1, self._vocabulary), self._edges.device
        allowed = torch.zeros(shape, dtype=torch.bool, device=device)
        onward = torch.full(shape, self._inner, device=device)
        children = torch.arange(1, 1 + len(self._edges), device=device)
        allowed.view(-1)[self._edges] = True
        onward.view(-1)[self._edges] = children.masked_fill(children >= self._inner, -1)
        return {"allow_table": allowed, "next_node": onward, "invalid_node": self._inner}

    def states(self, number: int, nodes: Tensor) -> Tensor:
        return torch.full_like(nodes, -1) if number == self._length else nodes

    def calls(self, given: PeerStep) -> dict[str, Callable[[], KeptBeams]]:
        if not given.number or given.scores.shape[1] != given.k:
            return {}
        step = partial(self._step, given, self._table)
        kept = step().scores  # the kernel writes them to the workspace
        own = self._workspace.get("vals", tuple(kept.shape), kept.dtype, kept.device)
        return {"fused" if own.data_ptr() == kept.data_ptr() else "in torch": step}

    def _step(self, given: PeerStep, table: dict[str, Any]) -> KeptBeams:
        (requests, beams), probabilities = given.scores.shape, given.logits.log_softmax(dim=-1)
        by_beam = probabilities.view(requests, beams, -1)
        values, tokens = by_beam.sort(dim=-1, descending=True)
        nodes = given.nodes.view(requests, beams)
        found = self._kernel.genrec_mask_topk_expand(
            given.scores,
            values,
            tokens,
            select_k=given.k,
            node_ids=nodes,
            token_ids=torch.zeros_like(nodes).unsqueeze(2).repeat(1, 1, self._length),
            col=given.number,
            workspace=self._workspace,
            **table,
        )
        first_rows = torch.arange(requests, device=nodes.device).unsqueeze(1) * beams
        return KeptBeams(found.parents + first_rows, found.tokens, found.vals, found.node_ids)
