"""The bytes of a batch's replies, in one call without the interpreter lock.

`grace.server.stages.replies.write_reply` is the definition, and writes what is asked for seldom:
SIDs.
"""

from collections.abc import Sequence
from ctypes import c_char_p, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from grace.index.matching.exact import HeldAds
from grace.native.loader import array_in, array_out, declare
from grace.proto.retrieval_pb2 import RetrieveResponse

__all__ = ["ReplyHeads", "write_replies"]

_MOST_NUMBERS = 128
"""Bytes of a reply's counts, timings and flags, and of the tags and sizes of its other fields."""

_AD_BYTES = 12  # its id and its score

_write = declare(
    "grace_replies_write",
    *(c_uint64, c_int64, array_in(np.int32), c_void_p, array_in(np.int64)),
    *(c_char_p, c_int64, c_char_p, c_int64, array_in(np.uint32, 2)),
    *(c_int64, array_out(np.uint8), array_out(np.int64)),
)


@dataclass(frozen=True, slots=True)
class ReplyHeads:
    """What stands in n replies beside their ads.

    rows     int32 [n]       of the matched batch
    ignored  names, of each
    timings  uint32 [n, 5]   the fields of grace.v1.Timings
    """

    rows: npt.NDArray[np.int32]
    request_ids: Sequence[str]
    ignored: Sequence[Sequence[str]]
    timings: npt.NDArray[np.uint32]
    snapshot_version: int
    checkpoint: str
    profile: str


def write_replies(ads: HeldAds, heads: ReplyHeads) -> list[bytes]:
    """As `write_reply` writes each."""
    replies = len(heads.request_ids)
    if not replies:
        return []
    texts = [request_id.encode() for request_id in heads.request_ids]
    texts += [_ignored(names) if names else b"" for names in heads.ignored]
    sizes = np.array([len(text) for text in texts], np.int64)
    served_by = _served_by(heads.snapshot_version, heads.checkpoint)
    profile = heads.profile.encode()
    fixed = _MOST_NUMBERS + len(served_by) + len(profile)
    room = int(ads.offsets[-1]) * _AD_BYTES + replies * fixed + int(sizes.sum())
    written = np.empty(room, np.uint8)
    ends = np.empty(replies, np.int64)
    _write(
        *(ads.replies, replies, heads.rows, (c_char_p * len(texts))(*texts), sizes),
        *(served_by, len(served_by), profile, len(profile)),
        *(heads.timings, room, written, ends),
    )
    whole, begin, made = written.data, 0, []
    for end in ends.tolist():
        made.append(bytes(whole[begin:end]))
        begin = end
    return made


def _ignored(names: Sequence[str]) -> bytes:
    return RetrieveResponse(ignored_names=names).SerializeToString()


@lru_cache(maxsize=64)
def _served_by(snapshot_version: int, checkpoint: str) -> bytes:
    return RetrieveResponse(
        snapshot_version=snapshot_version, checkpoint=checkpoint
    ).SerializeToString()
