"""The bytes of a batch's replies, in one call without the interpreter lock."""

from collections.abc import Sequence
from ctypes import c_char_p
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from grace.configs.arrays import Float32, Int32, Int64, UInt32
from grace.index.matching.exact import HeldAds
from grace.index.trie import NO_NODE, SidTrie
from grace.native.loader import declare
from grace.proto.retrieval_pb2 import RetrieveResponse

_MOST_NUMBERS = 192
"""Bytes of a reply's counts, timings and flags, and of the tags and sizes of its other fields."""

_FAILED_BYTES = 16  # of a count of failed ads, besides its label
_AD_BYTES = 16  # its id, its score and which SID it comes from

_write = declare(
    "grace_replies_write("
    "uint64, int64, int32[], pointer, int64[], text, int64, pointer, int64, bool[], text, int64, "
    "uint32[,], int64, int32[,], float32[,], int64[], int64, int64, uint32[,], int64, "
    "out uint8[], out int64[])"
)


@dataclass(frozen=True, slots=True)
class Leaves:
    """What a batch generated; dead leaves, and all of padding and corrupt requests, are NO_NODE."""

    leaves: Int32  # [bucket, num_sids]
    scores: Float32  # [bucket, num_sids]


@dataclass(frozen=True, slots=True)
class ReplyHeads:
    """The fields of n replies other than their ads and SIDs."""

    rows: Int32  # [n] of the matched batch
    request_ids: Sequence[str]
    ignored: Sequence[Sequence[str]]  # names, of each
    timings: UInt32  # [n, 5]: the fields of grace.v1.Timings
    include_sids: Sequence[bool]  # of each: whether its SIDs are returned as well
    # of each request: whether its profile is smaller than the one that it asked for
    degraded: Sequence[bool]
    snapshot_version: int
    checkpoint: str
    profile: str
    times: Sequence[int] | None  # of the tests of each; None: no rule depends on it
    labels: tuple[str, ...]  # of the components, by which ads failed


def write_replies(ads: HeldAds, heads: ReplyHeads, leaves: Leaves, trie: SidTrie) -> list[bytes]:
    """`ads` are those that were matched for `leaves`."""
    replies = len(heads.request_ids)
    if not replies:
        return []
    texts = [request_id.encode() for request_id in heads.request_ids]
    own = [
        RetrieveResponse(ignored_names=names).SerializeToString() if names else b""
        for names in heads.ignored
    ]
    if heads.times is not None:
        own = [text + _encoded(at=time) for text, time in zip(own, heads.times, strict=True)]
    texts += own
    sizes = np.array([len(text) for text in texts], np.int64)
    served_by = _encoded(snapshot_version=heads.snapshot_version, checkpoint=heads.checkpoint)
    labels = [label.encode() for label in heads.labels]
    profile = heads.profile.encode()
    first_sids, tokens = _sids(heads, leaves, trie)
    fixed = _MOST_NUMBERS + len(served_by) + len(profile)
    fixed += sum(len(label) + _FAILED_BYTES for label in labels)
    room = int(ads.offsets[-1]) * _AD_BYTES + replies * fixed + int(sizes.sum())
    room += tokens.nbytes + 4 * len(tokens)
    written = np.empty(room, np.uint8)
    ends = np.empty(replies, np.int64)
    _write(
        *(ads.replies, replies, heads.rows, (c_char_p * len(texts))(*texts), sizes),
        *(served_by, len(served_by), (c_char_p * len(labels))(*labels), len(labels)),
        *(np.array(heads.degraded, np.bool_), profile, len(profile), heads.timings),
        *(leaves.leaves.shape[1], leaves.leaves, leaves.scores),
        *(first_sids, len(tokens), trie.sid_length, tokens),
        *(room, written, ends),
    )
    whole = written.data
    return [bytes(whole[begin:end]) for begin, end in pairwise((0, *ends.tolist()))]


def _sids(heads: ReplyHeads, leaves: Leaves, trie: SidTrie) -> tuple[Int64, UInt32]:
    """The first SID of each reply that has SIDs, -1 for others, and the tokens of all of them."""
    if not any(heads.include_sids):
        return np.full(len(heads.include_sids), -1), np.empty((0, trie.sid_length), np.uint32)
    asked = np.array(heads.include_sids, np.bool_)
    own = leaves.leaves[heads.rows[asked]]
    live = own != NO_NODE
    first_sids = np.full(len(asked), -1)
    first_sids[asked] = np.cumsum([0, *live.sum(axis=1)[:-1]])
    return first_sids, trie.sids(own[live]).astype(np.uint32)


@lru_cache(maxsize=64)
def _encoded(**fields: Any) -> bytes:
    return RetrieveResponse(**fields).SerializeToString()
