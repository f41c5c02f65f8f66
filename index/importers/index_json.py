"""The `.index.json` of LETTER, LC-Rec and MiniOneRec: {"0": ["<a_12>", "<b_3>"], ...}.

A token may also be a plain integer.
"""

import re
from pathlib import Path

import pyarrow as pa

from grace.configs.errors import InputError
from grace.index.rejects import Fault, brief
from grace.index.snapshot import MAX_SID_LENGTH, MAX_VOCAB_SIZE
from grace.index.storage.strict_json import parse_object
from grace.index.tables.rows import Rows, other_rows

_TOKEN_TEXT = re.compile(r"<([A-Za-z])_([0-9]{1,6})>")


def read_index_json(path: Path, most: int | None) -> Rows:
    """Return `item_id` and `sid` of all items. SIDs are cut to `most` tokens."""
    try:
        items = parse_object(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: {error}; give an object of item ids and their tokens") from None
    read = [_tokens(value, most) for value in items.values()]
    faults = {row: each for row, each in enumerate(read) if isinstance(each, Fault)}
    sids = [None if isinstance(each, Fault) else each for each in read]
    columns = {
        "item_id": pa.array(items.keys(), pa.large_string()),
        "sid": pa.array(sids, pa.list_(pa.int64())),
    }
    return other_rows(str(path), range(len(items)), columns, "item_id", faults)


def _tokens(value: object, most: int | None) -> list[int] | Fault:
    if not isinstance(value, list):
        return Fault("sid", brief(value), "is not a list of tokens")
    tokens: list[int] = []
    for position, token in enumerate(value[: most or MAX_SID_LENGTH + 1]):
        number = _token(token, position)
        if isinstance(number, Fault):
            return number
        tokens.append(number)
    return tokens


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
    if 0 <= number < MAX_VOCAB_SIZE:
        return number
    return Fault("sid", brief(token), f"{where} is not 0 to {MAX_VOCAB_SIZE - 1}")
