"""Rejects: the rows that are refused, with the reason, and the list of the ads of a build."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from grace.configs.errors import InputError, RejectedAdsError
from grace.configs.strict_json import shown

_LONGEST = 200
_NO_LIMIT_REMEDY = (
    "fix them, or leave up to N out with `--max-rejects N`; "
    "`--max-rejects 1000000 --no-publish` lists all"
)


@dataclass(frozen=True, slots=True)
class Fault:
    column: str
    value: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Reject:
    file: str
    row: int  # entry, line or row of the file, from 0; messages count from 1
    id: int | str | None
    fault: Fault


class RejectLog:
    """Collects a build's rejects for a list at `path`; beyond `limit`, raises RejectedAdsError."""

    def __init__(self, limit: int, path: Path) -> None:
        if limit < 0:
            raise InputError(f"--max-rejects {limit}: give 0 or more")
        self._limit = limit
        self._path = path
        self._rejects: list[Reject] = []

    def __len__(self) -> int:
        return len(self._rejects)

    def extend(self, rejects: Iterable[Reject]) -> None:
        self._rejects.extend(rejects)
        found = len(self._rejects)
        if found > self._limit:
            self.write()
            remedy = "fix them or allow more" if self._limit else _NO_LIMIT_REMEDY
            raise RejectedAdsError(
                f"{found} ad{'' if found == 1 else 's'} refused so far, --max-rejects allows "
                f"{self._limit}; first: {in_words(self._rejects[0], 'ad')}; these are listed in "
                f"{self._path}: {remedy}"
            )

    def write(self, path: Path | None = None) -> Path | None:
        """Write one JSON object per reject, by file and row; return None if there is none."""
        if not self._rejects:
            return None
        path = path or self._path
        in_order = sorted(self._rejects, key=lambda reject: (reject.file, reject.row))
        rows = (
            {"file": each.file, "row": each.row + 1, "ad_id": each.id, **asdict(each.fault)}
            for each in in_order
        )
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(lines), "utf-8", errors="backslashreplace")
        except OSError as error:
            raise InputError(
                f"{path}: cannot write the list of refused ads: {error.strerror}; move away what "
                "is there"
            ) from None
        return path


def in_words(reject: Reject, thing: str) -> str:
    """Return the reject in one line; its id is that of a `thing`."""
    fault = reject.fault
    value = f" {shown(fault.value)}" if fault.value is not None else ""
    return f"{row_in_words(reject, thing)}: {fault.column}{value}: {fault.reason}"


def row_in_words(reject: Reject, thing: str) -> str:
    name = f", {thing} {shown(reject.id)}" if reject.id is not None else ""
    return f"{reject.file} row {reject.row + 1}{name}"


def brief(value: object) -> str:
    """Return a value of JSON as text, cut to what a list of rejects shows."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = "nested values"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
