"""What readers yield: items with their tokens, batch by batch; and what a token may look like."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.index.rejects import Fault, RejectedItem, brief
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE

__all__ = [
    "BATCH_ITEMS",
    "MAX_TOKEN",
    "ItemBatch",
    "RawItem",
    "SidRule",
    "batches",
]

BATCH_ITEMS = 1 << 16
MAX_TOKEN = MAX_VOCAB_SIZE - 1

_TOKEN_TEXT = re.compile(r"<([A-Za-z])_([0-9]{1,6})>")


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """
    rows    int64 [items]      where the file has each: entry, line or row, from 0
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
    """An item as JSON has it, or why it is none."""

    row: int
    item_id: object = None
    tokens: object = None
    fault: Fault | None = None


class SidRule:
    """How many tokens a SID has: as told, or as many as the first good item."""

    def __init__(self, length: int | None, cut: bool) -> None:
        self.length = length
        self._cut = cut  # a longer SID is meant to lose what it has beyond the length

    def tokens_of(self, value: object) -> list[int] | Fault:
        """The tokens of a JSON list of 12 or "<a_12>"."""
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
        told = f"{found} token{'' if found == 1 else 's'}"
        if self.length is not None:
            reason = f"the SID length is {self.length}"
            return None if found == self.length else Fault("sid", told, reason)
        if not 1 <= found <= MAX_SID_LENGTH:
            return Fault("sid", told, f"a SID has 1 to {MAX_SID_LENGTH} tokens")
        return None


def _token(token: object, position: int) -> int | Fault:
    if type(token) is int:  # not True, which equals 1
        number = token
    elif isinstance(token, str) and (found := _TOKEN_TEXT.fullmatch(token)):
        if ord(found[1].lower()) - ord("a") != position:
            letter = chr(ord("a") + position)
            reason = f"token at position {position} must begin with <{letter}_"
            return Fault("sid", token, reason)
        number = int(found[2])
    else:
        reason = f"token at position {position} is not like <{chr(ord('a') + position)}_12> or 12"
        return Fault("sid", brief(token), reason)
    if not 0 <= number <= MAX_TOKEN:
        reason = f"token at position {position} is not 0 to {MAX_TOKEN}"
        return Fault("sid", brief(token), reason)
    return number


def batches(
    file: str, items: Iterable[RawItem], rule: SidRule, items_per_batch: int = BATCH_ITEMS
) -> Iterator[ItemBatch]:
    """Judges raw items one by one."""
    pending = _Pending(file, rule)
    for item in items:
        pending.add(item)
        if pending.size >= items_per_batch:
            yield pending.take()
    if pending.size:
        yield pending.take()


class _Pending:
    def __init__(self, file: str, rule: SidRule) -> None:
        self._file = file
        self._rule = rule
        self._reset()

    def _reset(self) -> None:
        self._rows: list[int] = []
        self._ids: list[str] = []
        self._tokens: list[list[int]] = []
        self._rejects: list[RejectedItem] = []
        self._refused_ids: list[str] = []

    @property
    def size(self) -> int:
        return len(self._rows) + len(self._rejects)

    def add(self, item: RawItem) -> None:
        item_id, fault = item.item_id, item.fault
        if fault is None and type(item_id) is not int and not isinstance(item_id, str):
            fault = Fault("item_id", brief(item_id), "is neither text nor an integer")
        tokens = fault or self._rule.tokens_of(item.tokens)
        if isinstance(tokens, Fault):
            known = item_id if item_id is None else brief(item_id)
            if type(item_id) is int or isinstance(item_id, str):
                self._refused_ids.append(str(item_id))
            self._rejects.append(
                RejectedItem(
                    self._file, item.row, known, tokens.column, tokens.value, tokens.reason
                )
            )
            return
        self._rows.append(item.row)
        self._ids.append(str(item_id))
        self._tokens.append(tokens)

    def take(self) -> ItemBatch:
        length = self._rule.length or 0
        batch = ItemBatch(
            np.array(self._rows, np.int64),
            self._ids,
            np.array(self._tokens, np.int64).reshape(len(self._tokens), length),
            tuple(self._rejects),
            tuple(self._refused_ids),
        )
        self._reset()
        return batch
