"""Admission on a GPU: native/cuda/admit_children.cu, which says what makes it quick.

The kernel reads the addresses of users and index from an `Admission` in device memory, so a
captured launch finds each batch's. Every row of the result has room for the largest vocabulary: in
any snapshot, no node has more children.
"""

from ctypes import byref, sizeof

import torch
from torch import Tensor

from grace.index.trie import NO_NODE
from grace.kernels.checks import address, current_stream, sizes_of
from grace.kernels.decode.admission import Admission, admission_of
from grace.kernels.decode.admit_children import check_admission_shapes, check_users
from grace.kernels.decode.tensors import MOST_SETS_ON_GPU, Candidates, DecodeIndex
from grace.kernels.decode.users import UserTensors
from grace.native.loader import declare_cuda

_MOST_TABLED_BITS = 1024  # wider rows would need tables that no cache holds
_MOST_PLACES = 2**31 - 1
# (least rows, lanes that work on each row); found on an H200.
_LANES = ((12288, 8), (2049, 32), (0, 128))

_point_admission = declare_cuda("grace_cuda_point_admission(pointer, int64, pointer, pointer)")
_admit_children = declare_cuda(
    "grace_cuda_admit_children(pointer, pointer, pointer, int64, int64, int64, int32, pointer, "
    "pointer, pointer, pointer)"
)


def admit_children_cuda(nodes: Tensor, users: UserTensors, index: DecodeIndex) -> Candidates:
    """Compute what `admit_children_reference` does, with room after each row's candidates.

    A node that is not in the trie has no children here: a check would wait for the device.
    """
    check_admission_shapes(nodes, users, index)
    slot = CudaSlot()
    slot.point_at(users, index)
    return slot.admit_children(nodes)


class CudaSlot:
    """An `AdmissionSlot` whose steps may be captured once it points at a snapshot.

    From then on it accepts only snapshots of the same vocabulary sizes. It has addresses and owns
    no tensor of a batch: the caller keeps a batch's users and index until the batch has run.
    """

    def __init__(self) -> None:
        self._vocab_sizes: tuple[int, ...] | None = None
        self._admission: Tensor | None = None
        self._work: Tensor | None = None  # 64-bit words

    def point_at(self, users: UserTensors, index: DecodeIndex) -> None:
        check_users(users, index)
        if self._vocab_sizes not in (None, index.vocab_sizes):
            raise ValueError(
                f"this slot's steps have vocabulary sizes {self._vocab_sizes}, the snapshot has "
                f"{index.vocab_sizes}: make another slot"
            )
        device = index.node_offsets.device
        size, value = sizeof(Admission), byref(self._admission_of(users, index))
        if self._admission is None:
            self._admission = torch.empty(size, dtype=torch.uint8, device=device)
        _point_admission(current_stream(device), size, value, self._admission.data_ptr())
        self._vocab_sizes = index.vocab_sizes

    def admit_children(self, nodes: Tensor, lanes: int | None = None) -> Candidates:
        """Admit the children of nodes int32 [B, M]; requests without a user have none.

        lanes  the lanes that work on a row: 8, 32 or 128. None: the quickest for these rows
        """
        if self._admission is None or self._vocab_sizes is None:
            raise RuntimeError("the slot points at nothing yet: call point_at before")
        requests, beams = sizes_of("nodes", nodes, "requests beams", torch.int32)
        device = self._admission.device
        rows, room = requests * beams, max(self._vocab_sizes)
        if rows * room > _MOST_PLACES:
            raise ValueError(
                f"{rows} beam rows of {room} tokens are more than int32 can number; "
                "use fewer requests or beams"
            )
        lanes = lanes or next(lanes for least, lanes in _LANES if rows >= least)
        offsets = torch.empty(rows + 1, dtype=torch.int32, device=device)
        tokens = torch.empty(rows * room, dtype=torch.int32, device=device)
        children = torch.empty_like(tokens)
        counts = torch.empty(rows, dtype=torch.int32, device=device)
        _admit_children(
            current_stream(device),
            self._admission.data_ptr(),
            address("nodes", nodes, device, torch.int32),
            requests,
            beams,
            room,
            lanes,
            *(each.data_ptr() for each in (offsets, tokens, children, counts)),
        )
        return Candidates(offsets, tokens, children, counts)

    def leaves_of(self, nodes: Tensor) -> Tensor:
        if self._admission is None:
            raise RuntimeError("the slot points at nothing yet: call point_at before")
        # The first leaf is the node after all internal ones.
        first_leaf = self._admission.view(torch.int64)[Admission.internal_nodes.offset // 8]
        return (nodes - first_leaf).clamp_(min=NO_NODE)

    def _admission_of(self, users: UserTensors, index: DecodeIndex) -> Admission:
        admission, sets = admission_of(users, index)
        if index.bitmask_table is None:
            return admission
        requests, words = admission.requests, admission.words
        assert len(sets) <= MOST_SETS_ON_GPU  # DecodeIndex.of refuses more
        # Query tables come first, since each of their lines must lie in one line of the cache.
        tabled = [_tabled_words(each.bits, requests) for each in sets]
        device = index.node_offsets.device
        begin = self._work_space(sum(tabled) + requests * (1 + words), device)
        admission.user_words = begin + 8 * sum(tabled)
        admission.num_sets = len(sets)
        for i, each in enumerate(sets):
            each.query_tables = begin + 8 * sum(tabled[:i]) if tabled[i] else 0
            admission.sets[i] = each
        return admission

    def _work_space(self, words: int, device: torch.device) -> int:
        """Return the address of `words` 64-bit words in which the current stream may work."""
        if self._work is None or len(self._work) < words:
            self._work = torch.empty(words, dtype=torch.int64, device=device)
        if device.type == "cuda":
            self._work.record_stream(torch.cuda.current_stream(device))
        return self._work.data_ptr()


def _tabled_words(bits: int, requests: int) -> int:
    """Return the 64-bit words of the query tables [requests, bits / 4, 16]; 0 for too many bits."""
    return requests * bits // 4 * 16 if bits <= _MOST_TABLED_BITS else 0
