"""Rejects: the ads that a build refuses and the items that an import refuses, with the reason."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from grace.configs.errors import InputError, RejectedAdsError
from grace.index.storage.strict_json import shown

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Fault:
    column: str
    value: str | None
    reason: str  # a fixed text, since rejects are counted by it


@dataclass(frozen=True, slots=True)
class Reject:
    file: str
    row: int  # entry, line or row of the file, from 0; messages count from 1
    id: int | str | None
    fault: Fault


class RejectLog:
    """Collects rejects; raises RejectedAdsError when there are more than `limit`."""

    def __init__(
        self, thing: str, limit: int, path: Path, no_limit_remedy: str, path_remedy: str
    ) -> None:
        if limit < 0:
            raise InputError(f"--max-rejects {limit}: give 0 or more")
        self._thing = thing
        self._limit = limit
        self._path = path
        self._no_limit_remedy = no_limit_remedy  # where no reject is allowed
        self._path_remedy = path_remedy
        self._rejects: list[Reject] = []

    def __len__(self) -> int:
        return len(self._rejects)

    def extend(self, rejects: Iterable[Reject]) -> None:
        self._rejects.extend(rejects)
        found = len(self._rejects)
        if found > self._limit:
            self.write()
            things = self._thing if found == 1 else f"{self._thing}s"
            remedy = self._no_limit_remedy if self._limit == 0 else "fix them or allow more"
            first = in_words(self._rejects[0], self._thing)
            raise RejectedAdsError(
                f"{found} {things} refused so far, --max-rejects allows {self._limit}; "
                f"first: {first}; these are listed in {self._path}: {remedy}"
            )

    def by_reason(self) -> dict[str, int]:
        """Return how many records each reason refused, the commonest first."""
        faults = (reject.fault for reject in self._rejects)
        return dict(Counter(f"{fault.column}: {fault.reason}" for fault in faults).most_common())

    def write(self, path: Path | None = None) -> Path | None:
        """Write one JSON object per reject, by file and row; return None if there is none."""
        if not self._rejects:
            return None
        path = path or self._path
        in_order = sorted(self._rejects, key=lambda reject: (reject.file, reject.row))
        lines = [json.dumps(self._fields(each), ensure_ascii=False) + "\n" for each in in_order]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(lines), "utf-8", errors="backslashreplace")
        except OSError as error:
            raise InputError(
                f"{path}: cannot write the list of refused {self._thing}s: {error.strerror}; "
                f"{self._path_remedy}"
            ) from None
        return path

    def _fields(self, reject: Reject) -> dict[str, object]:
        place = {"file": reject.file, "row": reject.row + 1, f"{self._thing}_id": reject.id}
        return {**place, **asdict(reject.fault)}


def in_words(reject: Reject, thing: str) -> str:
    fault = reject.fault
    name = f", {thing} {shown(reject.id)}" if reject.id is not None else ""
    value = f" {shown(fault.value)}" if fault.value is not None else ""
    return f"{reject.file} row {reject.row + 1}{name}: {fault.column}{value}: {fault.reason}"


def ad_rejects(limit: int, path: Path) -> RejectLog:
    """`path` is for the list of a build that ends; the others name theirs."""
    remedy = (
        "fix them, or leave up to N out with `--max-rejects N`; "
        "`--max-rejects 1000000 --no-publish` lists all"
    )
    return RejectLog("ad", limit, path, remedy, "name another with --reject-file")


def item_rejects(limit: int, path: Path) -> RejectLog:
    return RejectLog("item", limit, path, "fix them or allow more", "name another --out")


def brief(value: object) -> str:
    """Return a value of JSON as text, cut to what a list of rejects shows."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = "nested values"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
