"""Accept items across the whole file: token ranges, numbers, and ids that occur twice."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.index.importers.item_batches import ItemBatch
from grace.index.importers.item_numbers import Numbering
from grace.index.rejects import Fault, RejectedItem, RejectLog

Int64 = npt.NDArray[np.int64]


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
    """Keeps 16 bytes an item at L = 4. Without vocab_sizes, they are as large as needed."""
    parts = []
    refused_ids: set[str] = set()
    read = 0
    for batch in batches:
        read += len(batch.rows) + len(batch.rejects)
        batch = _inside(file, batch, vocab_sizes)
        part, unnumbered = _numbered(file, batch, numbering)
        rejects.extend([*batch.rejects, *unnumbered])
        refused_ids.update(batch.refused_ids)
        if len(part[0]):
            parts.append(part)
    if not parts:
        return AcceptedItems(np.empty(0, np.int64), np.empty((0, 0), np.uint16), (), read)
    rows, numbers, tokens = map(np.concatenate, zip(*parts, strict=True))
    del parts
    refused = [number for text in refused_ids if (number := numbering.find(text)) is not None]
    repeated = _repeated(numbers) | np.isin(numbers, np.array(refused, np.int64))
    names = numbering.names(numbers[repeated])
    rejects.extend(
        Fault("item_id", name, "is repeated; no copy of it is imported").of_item(file, row, name)
        for row, name in zip(rows[repeated].tolist(), names, strict=True)
    )
    if repeated.any():
        numbers, tokens = numbers[~repeated], tokens[~repeated]
    if vocab_sizes is None and len(tokens):
        vocab_sizes = tuple(int(most) + 1 for most in tokens.max(axis=0))
    return AcceptedItems(numbers, tokens, vocab_sizes or (), read)


def _inside(file: str, batch: ItemBatch, vocab_sizes: tuple[int, ...] | None) -> ItemBatch:
    """Refuse the items that have a token outside the vocabulary."""
    if vocab_sizes is None or not len(batch.rows):
        return batch
    outside = batch.tokens >= np.array(vocab_sizes)
    bad = outside.any(axis=1)
    rejects, refused_ids = list(batch.rejects), list(batch.refused_ids)
    for at in np.flatnonzero(bad).tolist():
        position = int(np.argmax(outside[at]))
        size = vocab_sizes[position]
        reason = f"token at position {position} is outside the vocabulary of {size}"
        item_id = str(batch.ids[at])
        fault = Fault("sid", str(batch.tokens[at, position]), reason)
        rejects.append(fault.of_item(file, int(batch.rows[at]), item_id))
        refused_ids.append(item_id)
    good = np.flatnonzero(~bad)
    ids = [batch.ids[at] for at in good] if isinstance(batch.ids, list) else batch.ids[good]
    return ItemBatch(batch.rows[good], ids, batch.tokens[good], tuple(rejects), tuple(refused_ids))


def _numbered(
    file: str, batch: ItemBatch, numbering: Numbering
) -> tuple[tuple[Int64, Int64, npt.NDArray[np.uint16]], list[RejectedItem]]:
    """Return rows, numbers and tokens of the items that get a number, and the other items."""
    numbers, faults = numbering.numbers(batch.ids)
    rejects = [
        fault.of_item(file, int(batch.rows[at]), fault.value) for at, fault in faults.items()
    ]
    good = np.ones(len(numbers), np.bool_)
    good[list(faults)] = False
    return (batch.rows[good], numbers[good], batch.tokens[good].astype(np.uint16)), rejects


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
