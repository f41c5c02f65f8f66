"""Items and their SIDs: read batch by batch, accepted over the whole file.

An item is refused for a token out of range, an id without a number, or an id that occurs twice.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.rejects import Fault, Reject, RejectLog, brief
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE
from grace.index.tables.item_numbers import Int64, Numbering

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
    numbers  int64 [items]       unique, in the file's order
    tokens   uint16 [items, L]
    """

    numbers: Int64
    tokens: npt.NDArray[np.uint16]
    vocab_sizes: tuple[int, ...]
    read: int  # items in the file, refused ones too


def accept_items(
    file: str,
    batches: Iterable[ItemBatch],
    numbering: Numbering,
    vocab_sizes: tuple[int, ...] | None,
    rejects: RejectLog,
) -> AcceptedItems:
    """Return the accepted items; without vocab_sizes, the vocabulary is as large as they need.

    It keeps 16 bytes for each item at L = 4.
    """
    parts = []
    refused_ids: set[str] = set()
    read = 0
    for batch in batches:
        read += len(batch.rows) + len(batch.rejects)
        faults = _outside(batch.tokens, vocab_sizes)
        refused_ids.update(batch.refused_ids, (str(batch.ids[at]) for at in faults))
        in_range = np.delete(np.arange(len(batch.rows)), list(faults))
        numbers, unnumbered = numbering.numbers(_taken(batch.ids, in_range))
        faults |= {int(in_range[at]): fault for at, fault in unnumbered.items()}
        found = (
            Reject(file, int(batch.rows[at]), brief(str(batch.ids[at])), fault)
            for at, fault in faults.items()
        )
        rejects.extend([*batch.rejects, *found])
        good = np.delete(np.arange(len(numbers)), list(unnumbered))
        if len(good):
            kept = in_range[good]
            parts.append((batch.rows[kept], numbers[good], batch.tokens[kept].astype(np.uint16)))
    if not parts:
        return AcceptedItems(np.empty(0, np.int64), np.empty((0, 0), np.uint16), (), read)
    rows, numbers, tokens = map(np.concatenate, zip(*parts, strict=True))
    del parts
    refused = [number for text in refused_ids if (number := numbering.find(text)) is not None]
    repeated = _repeated(numbers) | np.isin(numbers, np.array(refused, np.int64))
    names = numbering.names(numbers[repeated])
    rejects.extend(
        Reject(file, row, name, Fault("item_id", name, "is repeated; no copy of it is imported"))
        for row, name in zip(rows[repeated].tolist(), names, strict=True)
    )
    if repeated.any():
        numbers, tokens = numbers[~repeated], tokens[~repeated]
    if vocab_sizes is None and len(tokens):
        vocab_sizes = tuple(int(most) + 1 for most in tokens.max(axis=0))
    return AcceptedItems(numbers, tokens, vocab_sizes or (), read)


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


def _taken(ids: Int64 | list[str], places: Int64) -> Int64 | list[str]:
    return [ids[at] for at in places] if isinstance(ids, list) else ids[places]


def _repeated(numbers: Int64) -> npt.NDArray[np.bool_]:
    if (numbers[1:] > numbers[:-1]).all():
        return np.zeros(len(numbers), np.bool_)
    in_order = np.sort(numbers)
    return np.isin(numbers, in_order[1:][in_order[1:] == in_order[:-1]])


def distinct_sids(tokens: npt.NDArray[np.uint16]) -> int:
    rank = np.zeros(len(tokens), np.int64)
    for position in range(tokens.shape[1]):
        # A rank is below 2^31, so rank and token fit into 47 bits.
        rank = np.unique((rank << 16) + tokens[:, position], return_inverse=True)[1].reshape(-1)
    return int(rank.max()) + 1 if len(rank) else 0
