"""The plain writer of replies, small fields through the generated class: C++ is compared with it.

A packed field on the wire is its tag, its length in bytes and its numbers, little-endian, and the
fields of a message may come in any order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from grace.proto.retrieval_pb2 import RetrieveResponse, Sids

__all__ = ["GeneratedSids", "write_reply"]

Part: TypeAlias = bytes | memoryview

_LENGTH_DELIMITED = 2
_CONTINUED = 0x80


@dataclass(frozen=True, slots=True)
class GeneratedSids:
    """What `Sids` of the reply holds.

    tokens     uint16 [n, L]
    scores     float32 [n]
    sid_of_ad  int32 [ads]
    """

    tokens: npt.NDArray[np.uint16]
    scores: npt.NDArray[np.float32]
    sid_of_ad: npt.NDArray[np.int32]


def write_reply(
    head: RetrieveResponse,
    ad_ids: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float32],
    sids: GeneratedSids | None = None,
) -> bytes:
    """The bytes of `head`, which has the small fields, with the ads and, if given, the SIDs."""
    parts: list[Part] = [head.SerializeToString()]
    _add_packed(parts, _AD_IDS, ad_ids.astype("<i8", copy=False))
    _add_packed(parts, _SCORES, scores.astype("<f4", copy=False))
    if sids is not None:
        _add_sids(parts, sids)
    return b"".join(parts)


def _add_sids(parts: list[Part], sids: GeneratedSids) -> None:
    inner: list[Part] = [Sids(length=sids.tokens.shape[1]).SerializeToString()]
    _add_packed(inner, _SID_TOKENS, sids.tokens.astype("<u4"))
    _add_packed(inner, _SID_SCORES, sids.scores.astype("<f4", copy=False))
    _add_packed(inner, _SID_OF_AD, sids.sid_of_ad.astype("<u4"))
    parts.append(_SIDS + _varint(_size(inner)))
    parts.extend(inner)


def _add_packed(parts: list[Part], tag: bytes, numbers: npt.NDArray[np.generic]) -> None:
    if numbers.size:
        parts.append(tag + _varint(numbers.nbytes))
        parts.append(np.ascontiguousarray(numbers).data)


def _size(parts: Sequence[Part]) -> int:
    return sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    written = bytearray()
    while number >= _CONTINUED:
        written.append(number % _CONTINUED | _CONTINUED)
        number //= _CONTINUED
    written.append(number)
    return bytes(written)


def _tag(field_number: int) -> bytes:
    return _varint(field_number << 3 | _LENGTH_DELIMITED)


_AD_IDS = _tag(RetrieveResponse.AD_IDS_FIELD_NUMBER)
_SCORES = _tag(RetrieveResponse.SCORES_FIELD_NUMBER)
_SIDS = _tag(RetrieveResponse.SIDS_FIELD_NUMBER)
_SID_TOKENS = _tag(Sids.TOKENS_FIELD_NUMBER)
_SID_SCORES = _tag(Sids.SCORES_FIELD_NUMBER)
_SID_OF_AD = _tag(Sids.SID_OF_AD_FIELD_NUMBER)
