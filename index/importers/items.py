"""Items and their SIDs: read batch by batch, accepted over the whole file.

An item is refused for a token out of range, for an id that names nothing, or for an id that occurs
twice.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from grace.index.rejects import Fault, Reject, RejectLog, brief
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE
from grace.index.tables.cells import integers
from grace.index.tables.item_numbers import Int64, no_name

BATCH_ITEMS = 1 << 16
_TOKEN_TEXT = re.compile(r"<([A-Za-z])_([0-9]{1,6})>")
_OUT_OF_RANGE = f"is not 0 to {MAX_VOCAB_SIZE - 1}"


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """
    rows    int64 [items]      each item's place in the file: entry, line or row, from 0
    ids     int64 [items], or a list of that many texts
    tokens  integers [items, L]
    """

    rows: Int64
    ids: Int64 | list[str]
    tokens: npt.NDArray[Any]
    rejects: tuple[Reject, ...] = ()  # refused items, which are not in the arrays
    refused_ids: tuple[str, ...] = ()  # the ids of refused items that have an id


@dataclass(frozen=True, slots=True)
class RawItem:
    """An item as read from JSON, or the fault of JSON that holds no item."""

    row: int
    item_id: object = None
    tokens: object = None
    fault: Fault | None = None


class SidRule:
    """The number of tokens of a SID: the given length, or that of the first valid item."""

    def __init__(self, length: int | None, cut: bool) -> None:
        self.length = length
        self._cut = cut  # cut a longer SID to the length

    def tokens_of(self, value: object) -> list[int] | Fault:
        """Return the tokens of a JSON list, whose elements are like 12 or "<a_12>"."""
        if not isinstance(value, list):
            return Fault("sid", brief(value), "is not a list of tokens")
        if self.length is not None and self._cut:
            value = value[: self.length]
        if fault := self._length_fault(len(value)):
            return fault
        tokens: list[int] = []
        for position, token in enumerate(value):
            read = _token(token, position)
            if isinstance(read, Fault):
                return read
            tokens.append(read)
        self.length = len(tokens)
        return tokens

    def _length_fault(self, found: int) -> Fault | None:
        count = f"{found} token{'' if found == 1 else 's'}"
        if self.length is not None:
            reason = f"the SID length is {self.length}"
            return None if found == self.length else Fault("sid", count, reason)
        if not 1 <= found <= MAX_SID_LENGTH:
            return Fault("sid", count, f"a SID has 1 to {MAX_SID_LENGTH} tokens")
        return None


def _token(token: object, position: int) -> int | Fault:
    where, letter = f"token at position {position}", chr(ord("a") + position)
    if type(token) is int:  # not True, which equals 1
        number = token
    elif isinstance(token, str) and (found := _TOKEN_TEXT.fullmatch(token)):
        if found[1].lower() != letter:
            return Fault("sid", token, f"{where} must begin with <{letter}_")
        number = int(found[2])
    else:
        return Fault("sid", brief(token), f"{where} is not like <{letter}_12> or 12")
    in_range = 0 <= number < MAX_VOCAB_SIZE
    return number if in_range else Fault("sid", brief(token), f"{where} {_OUT_OF_RANGE}")


def batches(file: str, items: Iterable[RawItem], rule: SidRule) -> Iterator[ItemBatch]:
    """Check raw items one by one."""
    iterator = iter(items)
    while part := list(islice(iterator, BATCH_ITEMS)):
        yield _batch(file, part, rule)


def _batch(file: str, items: Iterable[RawItem], rule: SidRule) -> ItemBatch:
    rows, ids, tokens, rejects, refused_ids = [], [], [], [], []
    for item in items:
        named = type(item.item_id) is int or isinstance(item.item_id, str)
        fault = item.fault
        if fault is None and not named:
            fault = Fault("item_id", brief(item.item_id), "is neither text nor an integer")
        sid = fault or rule.tokens_of(item.tokens)
        if isinstance(sid, Fault):
            known = None if item.item_id is None else brief(item.item_id)
            rejects.append(Reject(file, item.row, known, sid))
            if named:
                refused_ids.append(str(item.item_id))
        else:
            rows.append(item.row)
            ids.append(str(item.item_id))
            tokens.append(sid)
    sids = np.array(tokens, np.int64).reshape(len(tokens), rule.length or 0)
    return ItemBatch(np.array(rows, np.int64), ids, sids, tuple(rejects), tuple(refused_ids))


@dataclass(frozen=True, slots=True)
class AcceptedItems:
    """
    ids     int64 if all of them are integers from 0, else large_string [items]; in the file's order
    tokens  uint16 [items, L]
    """

    ids: pa.Array
    tokens: npt.NDArray[np.uint16]
    vocab_sizes: tuple[int, ...]
    read: int  # items in the file, refused ones too


def accept_items(
    file: str,
    batches: Iterable[ItemBatch],
    vocab_sizes: tuple[int, ...] | None,
    rejects: RejectLog,
) -> AcceptedItems:
    """Return the accepted items; without vocab_sizes, the vocabulary is as large as they need."""
    rows, ids, tokens = [], [], []
    refused_ids: set[str] = set()
    read = 0
    for batch in batches:
        read += len(batch.rows) + len(batch.rejects)
        faults = _outside(batch.tokens, vocab_sizes) | _unnamed(batch.ids)
        refused_ids.update(batch.refused_ids, (str(batch.ids[at]) for at in faults))
        found = (
            Reject(file, int(batch.rows[at]), brief(str(batch.ids[at])), fault)
            for at, fault in sorted(faults.items())
        )
        rejects.extend([*batch.rejects, *found])
        good = np.delete(np.arange(len(batch.rows)), list(faults))
        if len(good):
            rows.append(batch.rows[good])
            ids.append(_taken(batch.ids, good))
            tokens.append(batch.tokens[good].astype(np.uint16))
    if not rows:
        return AcceptedItems(pa.nulls(0, pa.int64()), np.empty((0, 0), np.uint16), (), read)
    names, sids = pa.concat_arrays(ids), np.concatenate(tokens)
    repeated = _repeated(names, refused_ids)
    places = np.concatenate(rows)[repeated].tolist()
    rejects.extend(
        Reject(file, row, name, Fault("item_id", name, "is repeated; no copy of it is imported"))
        for row, name in zip(places, map(str, names.filter(pa.array(repeated))), strict=True)
    )
    names, sids = _as_integers(names.filter(pa.array(~repeated))), sids[~repeated]
    if vocab_sizes is None and len(sids):
        vocab_sizes = tuple(int(most) + 1 for most in sids.max(axis=0))
    return AcceptedItems(names, sids, vocab_sizes or (), read)


def _outside(tokens: npt.NDArray[Any], vocab_sizes: tuple[int, ...] | None) -> dict[int, Fault]:
    """Return the faults of items with a token outside the vocabulary, by place."""
    sizes = vocab_sizes or (MAX_VOCAB_SIZE,) * tokens.shape[1]
    if not len(tokens):
        return {}
    outside = (tokens < 0) | (tokens >= np.array(sizes))
    faults = {}
    for at in np.flatnonzero(outside.any(axis=1)).tolist():
        position = int(np.argmax(outside[at]))
        token = int(tokens[at, position])
        in_range = 0 <= token < MAX_VOCAB_SIZE
        fault = f"is outside the vocabulary of {sizes[position]}" if in_range else _OUT_OF_RANGE
        faults[at] = Fault("sid", str(token), f"token at position {position} {fault}")
    return faults


def _unnamed(ids: Int64 | list[str]) -> dict[int, Fault]:
    """Return the faults of ids that name no item, by place."""
    if isinstance(ids, list):
        reasons = {at: reason for at, text in enumerate(ids) if (reason := no_name(text))}
    else:
        reasons = dict.fromkeys(np.flatnonzero(ids < 0).tolist(), "must not be negative")
    return {at: Fault("item_id", brief(str(ids[at])), why) for at, why in reasons.items()}


def _taken(ids: Int64 | list[str], places: Int64) -> pa.Array:
    if isinstance(ids, list):
        return pa.array([ids[at] for at in places], pa.large_string())
    return pa.array(ids[places], pa.int64())


def _repeated(ids: pa.Array, refused: Iterable[str]) -> npt.NDArray[np.bool_]:
    """Return which items have an id that another item has, also a refused one."""
    codes = ids.dictionary_encode().indices.to_numpy()
    again: npt.NDArray[np.bool_] = np.bincount(codes)[codes] > 1
    named = pa.array([text for text in refused if no_name(text) is None], pa.large_string())
    again |= pc.is_in(ids, named.cast(ids.type)).to_numpy(zero_copy_only=False)
    return again


def _as_integers(ids: pa.Array) -> pa.Array:
    if pa.types.is_integer(ids.type):
        return ids
    numbers, bad = integers(ids)
    return ids if bad.any() or (numbers.to_numpy() < 0).any() else numbers


def distinct_sids(tokens: npt.NDArray[np.uint16]) -> int:
    rank = np.zeros(len(tokens), np.int64)
    for position in range(tokens.shape[1]):
        # A rank is below 2^31, so rank and token fit into 47 bits.
        rank = np.unique((rank << 16) + tokens[:, position], return_inverse=True)[1].reshape(-1)
    return int(rank.max()) + 1 if len(rank) else 0
