"""Items and their SIDs: read batch by batch, accepted over the whole file."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grace.index.rejects import Fault, Reject, RejectLog, brief
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE
from grace.index.tables.cells import integers, list_parts
from grace.index.tables.item_numbers import no_name
from grace.index.tables.rows import Rows, other_rows

BATCH_ITEMS = 1 << 16
_TOKEN_TEXT = re.compile(r"<([A-Za-z])_([0-9]{1,6})>")


@dataclass(frozen=True, slots=True)
class RawItem:
    """An item as read from JSON, or the fault of JSON that holds no item."""

    row: int
    item_id: object = None
    tokens: object = None
    fault: Fault | None = None


def item_rows(file: str, items: Iterable[RawItem], most: int | None) -> Iterator[Rows]:
    """Yield `item_id` and `sid` of raw items. SIDs are cut to `most` tokens."""
    iterator = iter(items)
    while part := list(islice(iterator, BATCH_ITEMS)):
        yield _rows(file, part, most)


def _rows(file: str, items: Sequence[RawItem], most: int | None) -> Rows:
    ids, sids = [], []
    faults: dict[int, Fault] = {}
    for at, item in enumerate(items):
        name, tokens = _name(item.item_id), _tokens(item.tokens, most)
        for fault in (item.fault, name, tokens):
            if isinstance(fault, Fault):
                faults.setdefault(at, fault)
        ids.append(None if isinstance(name, Fault) else name)
        sids.append(None if isinstance(tokens, Fault) else tokens)
    columns = {
        "item_id": pa.array(ids, pa.large_string()),
        "sid": pa.array(sids, pa.list_(pa.int64())),
    }
    return other_rows(file, [item.row for item in items], columns, "item_id", faults)


def _name(item_id: object) -> str | Fault:
    if type(item_id) is not int and not isinstance(item_id, str):  # not True, which equals 1
        return Fault("item_id", brief(item_id), "is neither text nor an integer")
    reason = no_name(str(item_id))
    return str(item_id) if reason is None else Fault("item_id", brief(str(item_id)), reason)


def _tokens(value: object, most: int | None) -> list[int] | Fault:
    """Return the tokens of a JSON list, whose elements are like 12 or "<a_12>"."""
    if not isinstance(value, list):
        return Fault("sid", brief(value), "is not a list of tokens")
    tokens: list[int] = []
    for position, token in enumerate(value[:most]):
        read = _token(token, position) if position < MAX_SID_LENGTH else 0
        if isinstance(read, Fault):
            return read
        tokens.append(read)
    return tokens


def _token(token: object, position: int) -> int | Fault:
    where, letter = f"token at position {position}", chr(ord("a") + position)
    if type(token) is int:
        number = token
    elif isinstance(token, str) and (found := _TOKEN_TEXT.fullmatch(token)):
        if found[1].lower() != letter:
            return Fault("sid", token, f"{where} must begin with <{letter}_")
        number = int(found[2])
    else:
        return Fault("sid", brief(token), f"{where} is not like <{letter}_12> or 12")
    in_range = 0 <= number < MAX_VOCAB_SIZE
    fault = Fault("sid", brief(token), f"{where} is not 0 to {MAX_VOCAB_SIZE - 1}")
    return number if in_range else fault


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
    parts: Iterable[Rows],
    length: int | None,
    vocab_sizes: tuple[int, ...] | None,
    rejects: RejectLog,
) -> AcceptedItems:
    """Return the accepted items.

    Without `length`, it is that of the first SID. Without `vocab_sizes`, the vocabulary is as large
    as the tokens need.
    """
    places, ids, sids, good = [], [], [], []
    for rows in parts:
        length = length or _first_length(rows)
        names = rows.names("item_id")
        sizes = np.array(vocab_sizes or (MAX_VOCAB_SIZE,) * length)
        tokens = rows.sids("sid", length, sizes)
        rejects.extend(rows.rejects())
        places.append(rows.places)
        ids.append(names)
        sids.append(tokens.astype(np.uint16))
        good.append(~rows.refused())
    if not places:
        return AcceptedItems(pa.nulls(0, pa.int64()), np.empty((0, 0), np.uint16), (), 0)
    all_ids, accepted = pa.concat_arrays(ids), np.concatenate(good)
    # A good copy is refused, too, even if all other copies are faulty.
    codes = all_ids.dictionary_encode().indices.fill_null(0).to_numpy()
    repeated = accepted & (np.bincount(codes[all_ids.is_valid()], minlength=1)[codes] > 1)
    named = zip(
        np.concatenate(places)[repeated].tolist(),
        map(str, all_ids.filter(pa.array(repeated))),
        strict=True,
    )
    reason = "is repeated; no copy of it is imported"
    rejects.extend(Reject(file, row, name, Fault("item_id", name, reason)) for row, name in named)
    accepted &= ~repeated
    kept = np.concatenate(sids)[accepted]
    if vocab_sizes is None and len(kept):
        vocab_sizes = tuple(int(most) + 1 for most in kept.max(axis=0))
    names = _as_integers(all_ids.filter(pa.array(accepted)))
    return AcceptedItems(names, kept, vocab_sizes or (), len(accepted))


def _first_length(rows: Rows) -> int:
    counts = np.diff(list_parts(rows.lists("sid")).offsets)
    usable = counts[~rows.refused() & (counts >= 1) & (counts <= MAX_SID_LENGTH)]
    return int(usable[0]) if len(usable) else 1


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
