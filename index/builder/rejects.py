"""Ads that a build refuses: each is listed, none is dropped silently."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from grace.configs.errors import InputError, RejectedAdsError
from grace.index.storage.strict_json import shown

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
        value = "" if self.value is None else f" {shown(self.value)}"
        return f"{self.file} row {self.row}{ad}: {self.column}{value}: {self.reason}"


class RejectLog:
    """Collects rejects and ends the build once there are more than `limit`."""

    def __init__(self, limit: int, path_if_ended: Path) -> None:
        if limit < 0:
            raise InputError(f"--max-rejects {limit}: give 0 or more")
        self._limit = limit
        self._path_if_ended = path_if_ended
        self._rejects: list[Reject] = []

    def __len__(self) -> int:
        return len(self._rejects)

    def extend(self, rejects: Iterable[Reject]) -> None:
        self._rejects.extend(rejects)
        found = len(self._rejects)
        if found > self._limit:
            self.write(self._path_if_ended)
            ads = "ad" if found == 1 else "ads"
            remedy = "mend them or allow more"
            if self._limit == 0:
                remedy = "mend them; `--max-rejects 1000000 --no-publish` lists all"
            raise RejectedAdsError(
                f"{found} {ads} refused so far, --max-rejects allows {self._limit}; "
                f"first: {self._rejects[0]}; these are listed in {self._path_if_ended}: {remedy}"
            )

    def write(self, path: Path) -> Path | None:
        """One JSON object per refused ad, by file and row; no file where there is none."""
        if not self._rejects:
            return None
        in_order = sorted(self._rejects, key=lambda reject: (reject.file, reject.row))
        lines = [json.dumps(asdict(reject), ensure_ascii=False) for reject in in_order]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"{path}: cannot write the list of refused ads: {error.strerror}; "
                "name another with --reject-file"
            ) from None
        return path
