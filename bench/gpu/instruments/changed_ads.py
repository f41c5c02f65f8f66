"""What a server must answer while ads change: the catalogue and the rows sent, in plain Python."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from grace.bench.gpu.instruments.reply_check import ads_of, fault_of
from grace.catalogues.paper.changes import PaperChange
from grace.client import RetrieveResult
from grace.index.forms.component import values_in
from grace.index.snapshot import Snapshot
from grace.index.trie import NO_NODE
from grace.proto.retrieval_pb2 import RetrieveRequest

Sid = tuple[int, ...]
Row = Mapping[str, Any]


class SeenReply(NamedTuple):
    """A reply with all SIDs."""

    request: RetrieveRequest
    result: RetrieveResult
    first: int  # the last update that was visible when its call began
    last: int  # the last one that was sent before the reply came


@dataclass(frozen=True)
class ChangedAds:
    """The ads of a snapshot of the paper's catalogue after each of some updates, from number 1."""

    snapshot: Snapshot
    _rows: defaultdict[int, list[tuple[int, Row | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _put_at: defaultdict[Sid, set[int]] = field(default_factory=lambda: defaultdict(set))

    def add(self, update: int, change: PaperChange) -> None:
        """Note the next update."""
        for row in change.puts:
            self._rows[row["ad_id"]].append((update, row))
            self._put_at[tuple(row["sid"])].add(row["ad_id"])
        for ad_id in change.removed:
            self._rows[ad_id].append((update, None))

    def fault(self, seen: SeenReply) -> str:
        """Return how the reply differs from each one that is right; "" if it is one of them.

        A right one is that of `first`, of `last`, or of an update between them.
        """
        sids, max_ads = seen.result.sids, seen.request.max_ads
        assert sids is not None
        scores = dict(zip(map(tuple, sids.tokens.tolist()), sids.scores.tolist(), strict=True))
        built, faults = list(self._built(seen.request, [*scores])), []
        for update in range(seen.first, seen.last + 1):
            ads = [ad for ad in built if not self._changes(ad[0], update)]
            ads += self._put(seen.request, scores, update)
            expected = {ad_id: scores[sid] for ad_id, sid, passes in ads if passes}
            fault = fault_of(seen.result.message, expected, len(ads), max_ads)
            if not fault:
                return ""
            faults.append(f"update {update}: {fault}")
        return "; ".join(faults)

    def _changes(self, ad_id: int, update: int) -> list[Row | None]:
        return [row for number, row in self._rows.get(ad_id, ()) if number <= update]

    def _built(
        self, request: RetrieveRequest, sids: Sequence[Sid]
    ) -> Iterator[tuple[int, Sid, bool]]:
        """Yield the snapshot's ads of these SIDs: id, SID, and whether the user may see it."""
        nodes = np.array([self.snapshot.trie.walk(sid) for sid in sids], np.int64)
        there = np.flatnonzero(nodes != NO_NODE)
        ads = ads_of(self.snapshot, nodes[there] - self.snapshot.trie.first_leaf, request)
        own = [sids[place] for place in there[ads.leaf]]
        return zip(ads.ids.tolist(), own, ads.passes.tolist(), strict=True)

    def _put(
        self, request: RetrieveRequest, sids: Mapping[Sid, float], update: int
    ) -> Iterator[tuple[int, Sid, bool]]:
        """Yield the ads of these SIDs that are put as of an update."""
        for sid in self._put_at.keys() & sids.keys():
            for ad_id in self._put_at[sid]:
                *_, row = None, *self._changes(ad_id, update)
                if row is not None and tuple(row["sid"]) == sid:
                    yield ad_id, sid, self._passes(row, request)

    def _passes(self, row: Row, request: RetrieveRequest) -> bool:
        """All lists are includes, and the population's users have one value of each attribute."""
        lists = [(name, row[name]) for name in self.snapshot.schema.names if name in row]
        return all({*values_in(request, name)} & {*values} for name, values in lists)
