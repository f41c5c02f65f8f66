"""Orders of ads, their groups by entity, numbers by first use, and spans of jagged arrays."""

import numpy as np

from grace.configs.arrays import Int32, Int64, UInt16
from grace.index.matching.ads import NO_ENTITY, Entities
from grace.native.loader import declare

_order_by_id = declare("grace_order_by_id(int64, int64[], int32, out int32[])")
_order_by_sid = declare("grace_order_by_sid(int64, uint16[,], int32, int32, out int32[])")


def order_by_id(ad_ids: Int64, threads: int) -> Int32:
    """Return the rows in ascending order of id.   int64 [n] -> int32 [n]"""
    order = np.empty(len(ad_ids), np.int32)
    _order_by_id(len(ad_ids), ad_ids, threads, order)
    return order


def order_by_sid(tokens: UInt16, order: Int32, threads: int) -> Int32:
    """Return the rows of `order`, stably reordered by SID.   uint16 [n, L], int32 [n] -> [n]"""
    by_sid = order.copy()
    _order_by_sid(len(tokens), tokens, tokens.shape[1], threads, by_sid)
    return by_sid


def group_by_entity(name: str, ids: Int64, threads: int) -> Entities:
    """Group the ads by entity.   ids int64 [ads] by ordinal, NO_ENTITY for none"""
    members = np.flatnonzero(ids != NO_ENTITY).astype(np.int32)
    ads = members[order_by_id(ids[members], threads)]
    in_order = ids[ads]
    is_first = np.ones(len(ads), np.bool_)
    np.not_equal(in_order[1:], in_order[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    of_ad = np.full(len(ids), NO_ENTITY, np.int32)
    of_ad[ads] = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    offsets = np.append(firsts, len(ads)).astype(np.int64)
    return Entities(name, in_order[firsts], of_ad, offsets, ads)


def first_use(uses: Int32, num_ids: int) -> tuple[Int32, Int32]:
    """Number the ids in `uses`, all in 0 .. num_ids - 1, in the order of their first use.

    Return the new id of each old one, -1 where it is unused, and the old id of each new one.
    """
    first = np.full(num_ids, len(uses), np.int32)
    first[uses[::-1]] = np.arange(len(uses), dtype=np.int32)[::-1]  # of several, the last counts
    used = np.flatnonzero(first < len(uses))
    old_of = used[np.argsort(first[used])].astype(np.int32)
    new_of = np.full(num_ids, -1, np.int32)
    new_of[old_of] = np.arange(len(old_of), dtype=np.int32)
    return new_of, old_of
