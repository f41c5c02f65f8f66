"""Ads that a build refuses: each is listed, none is dropped silently."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from configs.errors import RejectedAdsError

__all__ = ["Reject", "RejectLog"]


@dataclass(frozen=True, slots=True)
class Reject:
    file: str
    row: int  # within the file, from 0
    ad_id: int | None
    column: str
    value: str | None
    reason: str

    def __str__(self) -> str:
        ad = "" if self.ad_id is None else f", ad {self.ad_id}"
        value = "" if self.value is None else f" {self.value!r}"
        return f"{self.file} row {self.row}{ad}: {self.column}{value}: {self.reason}"


class RejectLog:
    """Collects rejects and ends the build once there are more than `limit`."""

    def __init__(self, limit: int, path: Path) -> None:
        self._limit = limit
        self._path = path
        self._rejects: list[Reject] = []

    def __len__(self) -> int:
        return len(self._rejects)

    @property
    def path(self) -> Path:
        return self._path

    def extend(self, rejects: Iterable[Reject]) -> None:
        self._rejects.extend(rejects)
        if len(self._rejects) > self._limit:
            self.write()
            raise RejectedAdsError(
                f"{len(self._rejects)} ads refused so far, --max-rejects allows {self._limit}; "
                f"first: {self._rejects[0]}; all are in {self._path}: mend them or allow more"
            )

    def write(self) -> None:
        """One JSON object per refused ad, in input order; nothing is written when there is none."""
        if not self._rejects:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        in_order = sorted(self._rejects, key=lambda reject: (reject.file, reject.row))
        lines = [json.dumps(asdict(reject), ensure_ascii=False) for reject in in_order]
        self._path.write_text("\n".join(lines) + "\n", encoding="utf-8")
