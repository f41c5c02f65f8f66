"""Items that an import refuses: each is listed with its place and the reason, and counted."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from grace.configs.errors import InputError, RejectedAdsError
from grace.index.storage.strict_json import shown

__all__ = ["Fault", "ItemRejects", "RejectedItem", "brief"]

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Fault:
    column: str
    value: str | None
    reason: str  # the same words for all items that share it, since they are counted by it


@dataclass(frozen=True, slots=True)
class RejectedItem:
    file: str
    row: int  # entry, line or row of the file, from 0
    item_id: str | None
    column: str
    value: str | None
    reason: str

    def __str__(self) -> str:
        item = "" if self.item_id is None else f", item {shown(self.item_id)}"
        value = "" if self.value is None else f" {shown(self.value)}"
        return f"{self.file} row {self.row}{item}: {self.column}{value}: {self.reason}"


class ItemRejects:
    """Collects what is refused and ends the import once there is more than `limit`."""

    def __init__(self, limit: int, list_path: Path) -> None:
        if limit < 0:
            raise InputError(f"--max-rejects {limit}: give 0 or more")
        self._limit = limit
        self.list_path = list_path
        self._rejects: list[RejectedItem] = []

    def __len__(self) -> int:
        return len(self._rejects)

    def extend(self, rejects: Iterable[RejectedItem]) -> None:
        self._rejects.extend(rejects)
        found = len(self._rejects)
        if found > self._limit:
            self.write()
            items = "item" if found == 1 else "items"
            raise RejectedAdsError(
                f"{found} {items} refused so far, --max-rejects allows {self._limit}; "
                f"first: {self._rejects[0]}; these are listed in {self.list_path}: "
                "mend them or allow more"
            )

    def by_reason(self) -> dict[str, int]:
        """How many items each reason refused, the commonest first."""
        counts = Counter(f"{reject.column}: {reject.reason}" for reject in self._rejects)
        return dict(counts.most_common())

    def write(self) -> Path | None:
        """One JSON object per item. Without any, the list of an import before this one goes."""
        if not self._rejects:
            self.list_path.unlink(missing_ok=True)
            return None
        in_order = sorted(self._rejects, key=lambda reject: (reject.file, reject.row))
        lines = [json.dumps(asdict(reject), ensure_ascii=False) for reject in in_order]
        self.list_path.write_text("\n".join(lines) + "\n", "utf-8", errors="backslashreplace")
        return self.list_path


def brief(value: object) -> str:
    """A value of JSON as a list of rejects shows it: no longer than a reader wants it."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = "nested values"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
