"""Items with their tokens, batch by batch, and what a SID in a JSON file may look like."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from grace.index.rejects import Fault, RejectedItem, brief
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE

BATCH_ITEMS = 1 << 16
MAX_TOKEN = MAX_VOCAB_SIZE - 1

_TOKEN_TEXT = re.compile(r"<([A-Za-z])_([0-9]{1,6})>")


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """
    rows    int64 [items]      each item's place in the file: entry, line or row, from 0
    ids     int64 [items], or as many texts
    tokens  int64 [items, L]   each 0 to MAX_TOKEN
    """

    rows: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64] | list[str]
    tokens: npt.NDArray[np.int64]
    rejects: tuple[RejectedItem, ...]  # items of the file that are not among these
    refused_ids: tuple[str, ...]  # of those that have one


@dataclass(frozen=True, slots=True)
class RawItem:
    """An item as its JSON has it, or the fault of what is not an item."""

    row: int
    item_id: object = None
    tokens: object = None
    fault: Fault | None = None


class SidRule:
    """How many tokens a SID has: the given length, or that of the first good item."""

    def __init__(self, length: int | None, cut: bool) -> None:
        self.length = length
        self._cut = cut  # a longer SID loses what it has beyond the length

    def tokens_of(self, value: object) -> list[int] | Fault:
        """Return the tokens of a JSON list of 12 or "<a_12>"."""
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
    if not 0 <= number <= MAX_TOKEN:
        return Fault("sid", brief(token), f"{where} is not 0 to {MAX_TOKEN}")
    return number


def batches(
    file: str, items: Iterable[RawItem], rule: SidRule, items_per_batch: int = BATCH_ITEMS
) -> Iterator[ItemBatch]:
    """Check raw items one by one."""
    iterator = iter(items)
    while part := list(islice(iterator, items_per_batch)):
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
            rejects.append(sid.of_item(file, item.row, known))
            if named:
                refused_ids.append(str(item.item_id))
        else:
            rows.append(item.row)
            ids.append(str(item.item_id))
            tokens.append(sid)
    return ItemBatch(
        np.array(rows, np.int64),
        ids,
        np.array(tokens, np.int64).reshape(len(tokens), rule.length or 0),
        tuple(rejects),
        tuple(refused_ids),
    )
