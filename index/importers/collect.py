"""Judges items across the whole file: token ranges, numbers, and ids that are there twice."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.index.importers.items import ItemBatch
from grace.index.importers.numbering import Numbering
from grace.index.rejects import RejectedItem, RejectLog

__all__ = ["CollectedItems", "collect_items", "distinct_sids"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CollectedItems:
    """
    numbers  int64 [items]       unique, in the file's order
    tokens   uint16 [items, L]
    """

    numbers: Int64
    tokens: npt.NDArray[np.uint16]
    vocab_sizes: tuple[int, ...]
    read: int  # items in the file, refused ones too


def collect_items(
    file: str,
    batches: Iterable[ItemBatch],
    numbering: Numbering,
    vocab_sizes: tuple[int, ...] | None,
    rejects: RejectLog,
) -> CollectedItems:
    """Keeps 16 bytes an item at L = 4. Vocabularies that are not told are as large as needed."""
    rows, numbers, tokens = [], [], []
    refused_ids: set[str] = set()
    read = 0
    for batch in batches:
        read += len(batch.rows) + len(batch.rejects)
        batch = _inside(file, batch, vocab_sizes)
        kept, unnumbered = _numbered(file, batch, numbering)
        rejects.extend([*batch.rejects, *unnumbered])
        refused_ids.update(batch.refused_ids)
        if len(kept[0]):
            rows.append(kept[0])
            numbers.append(kept[1])
            tokens.append(kept[2])
    if not rows:
        return CollectedItems(np.empty(0, np.int64), np.empty((0, 0), np.uint16), (), read)
    all_rows, all_numbers = np.concatenate(rows), np.concatenate(numbers)
    all_tokens = np.concatenate(tokens)
    refused = [number for text in refused_ids if (number := numbering.find(text)) is not None]
    repeated = _repeated(all_numbers) | np.isin(all_numbers, np.array(refused, np.int64))
    names = numbering.names(all_numbers[repeated])
    reason = "is repeated; no copy of it is imported"
    rejects.extend(
        RejectedItem(file, row, name, "item_id", name, reason)
        for row, name in zip(all_rows[repeated].tolist(), names, strict=True)
    )
    if repeated.any():
        all_numbers, all_tokens = all_numbers[~repeated], all_tokens[~repeated]
    if vocab_sizes is None and len(all_tokens):
        vocab_sizes = tuple(int(most) + 1 for most in all_tokens.max(axis=0))
    return CollectedItems(all_numbers, all_tokens, vocab_sizes or (), read)


def _inside(file: str, batch: ItemBatch, vocab_sizes: tuple[int, ...] | None) -> ItemBatch:
    """The batch with those items refused that have a token outside the vocabulary."""
    if vocab_sizes is None or not len(batch.rows):
        return batch
    outside = batch.tokens >= np.array(vocab_sizes)
    bad = outside.any(axis=1)
    rejects, refused_ids = list(batch.rejects), list(batch.refused_ids)
    for at in np.flatnonzero(bad).tolist():
        position = int(np.argmax(outside[at]))
        size = vocab_sizes[position]
        reason = f"token at position {position} is outside the vocabulary of {size}"
        token = str(batch.tokens[at, position])
        row, item_id = int(batch.rows[at]), str(batch.ids[at])
        rejects.append(RejectedItem(file, row, item_id, "sid", token, reason))
        refused_ids.append(item_id)
    good = np.flatnonzero(~bad)
    ids = [batch.ids[at] for at in good] if isinstance(batch.ids, list) else batch.ids[good]
    return ItemBatch(batch.rows[good], ids, batch.tokens[good], tuple(rejects), tuple(refused_ids))


def _numbered(
    file: str, batch: ItemBatch, numbering: Numbering
) -> tuple[tuple[Int64, Int64, npt.NDArray[np.uint16]], list[RejectedItem]]:
    """Rows, numbers and tokens of the items that get a number, and the others."""
    numbers, faults = numbering.numbers(batch.ids)
    rejects = [
        RejectedItem(
            file, int(batch.rows[at]), fault.value, fault.column, fault.value, fault.reason
        )
        for at, fault in faults.items()
    ]
    good = np.ones(len(numbers), np.bool_)
    good[list(faults)] = False
    return (batch.rows[good], numbers[good], batch.tokens[good].astype(np.uint16)), rejects


def _repeated(numbers: Int64) -> npt.NDArray[np.bool_]:
    repeated = np.zeros(len(numbers), np.bool_)
    if (numbers[1:] > numbers[:-1]).all():
        return repeated
    order = np.argsort(numbers, kind="stable")
    same = numbers[order[1:]] == numbers[order[:-1]]
    repeated[order[1:][same]] = True
    repeated[order[:-1][same]] = True
    return repeated


def distinct_sids(tokens: npt.NDArray[np.uint16]) -> int:
    rank = np.zeros(len(tokens), np.int64)
    for position in range(tokens.shape[1]):
        # Ranks stay below 2^31, so that the next token always finds room beside them.
        rank = np.unique((rank << 16) + tokens[:, position], return_inverse=True)[1].reshape(-1)
    return int(rank.max()) + 1 if len(rank) else 0
