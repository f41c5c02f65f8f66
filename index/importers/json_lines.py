"""JSON lines, one item each: {"item_id": "B01", "token_ids": [12, 3, 77]}; and plain lines."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from grace.index.importers.index_json import no_constant
from grace.index.importers.item_batches import RawItem
from grace.index.rejects import Fault
from grace.index.storage.strict_json import shown, without_repeats

LONGEST_LINE = 1 << 20  # bytes


def read_json_lines(path: Path, advance: Callable[[int], None]) -> Iterator[RawItem]:
    """Each line is checked by itself; empty ones are skipped."""
    for row, line in enumerate(lines(path, advance)):
        if line is None:
            yield RawItem(row, fault=Fault("line", None, f"is longer than {LONGEST_LINE} bytes"))
        elif line.strip():
            yield _item(row, line)


def lines(path: Path, advance: Callable[[int], None]) -> Iterator[bytes | None]:
    """Yield a file's lines without their ends; None for one that is too long to be an item."""
    read = 0
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE + 1):
            read += len(line)
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(LONGEST_LINE)
                read += len(rest)
            advance(read)
            yield None if len(line) > LONGEST_LINE else line.rstrip(b"\r\n")


def _item(row: int, line: bytes) -> RawItem:
    try:
        text = line.decode()
        value = json.loads(text, object_pairs_hook=without_repeats, parse_constant=no_constant)
    except RecursionError:
        return RawItem(row, fault=Fault("line", None, "is nested too deeply"))
    except UnicodeDecodeError:
        return RawItem(row, fault=Fault("line", None, "is not UTF-8"))
    except ValueError as error:
        return RawItem(row, fault=Fault("line", str(error), "is not JSON that we read"))
    if not isinstance(value, dict):
        return RawItem(row, fault=Fault("line", shown(value), "is not an object"))
    for key in ("item_id", "token_ids"):
        if key not in value:
            return RawItem(row, value.get("item_id"), fault=Fault(key, None, "is missing"))
    return RawItem(row, value["item_id"], value["token_ids"])
