"""What a server must answer while ads change: the catalogue and the rows sent, in plain Python."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from grace.bench.gpu.instruments.reply_check import eligible_rules, fault_of, ranges, values_of
from grace.catalogues.paper.changes import PaperChange
from grace.client import RetrieveResult
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import Attribute
from grace.index.users.user_rows import UserAttributes

Sid = tuple[int, ...]
Row = Mapping[str, Any]


class SeenReply(NamedTuple):
    """A reply with all SIDs.

    first  the last update that was visible when its call began
    last   the last one that was sent before the reply came
    """

    user: UserAttributes
    max_ads: int
    result: RetrieveResult
    first: int
    last: int


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
        sids = seen.result.sids
        assert sids is not None
        scores = dict(zip(map(tuple, sids.tokens.tolist()), sids.scores.tolist(), strict=True))
        built, faults = list(self._built(seen.user, [*scores])), []
        for update in range(seen.first, seen.last + 1):
            ads = [ad for ad in built if not self._changes(ad[0], update)]
            ads += self._put(seen.user, scores, update)
            expected = {ad_id: scores[sid] for ad_id, sid, passes in ads if passes}
            fault = fault_of(seen.result.message, expected, len(ads), seen.max_ads)
            if not fault:
                return ""
            faults.append(f"update {update}: {fault}")
        return "; ".join(faults)

    def _changes(self, ad_id: int, update: int) -> list[Row | None]:
        return [row for number, row in self._rows.get(ad_id, ()) if number <= update]

    def _built(self, user: UserAttributes, sids: Sequence[Sid]) -> Iterator[tuple[int, Sid, bool]]:
        """Yield the snapshot's ads of these SIDs: id, SID, and whether the user may see it."""
        trie, ads = self.snapshot.trie, self.snapshot.ads
        nodes = np.array([trie.walk(sid) for sid in sids], np.int64)
        there = np.flatnonzero(nodes >= 0)
        leaves = nodes[there] - trie.first_leaf
        begins, ends = ads.ad_offsets[leaves], ads.ad_offsets[leaves + 1]
        ordinals = ranges(begins, ends)
        rules, of_rule = np.unique(ads.ad_rule[ordinals], return_inverse=True)
        passes = eligible_rules(self.snapshot, rules, user)[of_rule].tolist()
        own = [sids[place] for place in np.repeat(there, ends - begins)]
        return zip(ads.ad_ids[ordinals].tolist(), own, passes, strict=True)

    def _put(
        self, user: UserAttributes, sids: Mapping[Sid, float], update: int
    ) -> Iterator[tuple[int, Sid, bool]]:
        """Yield the ads of these SIDs that are put as of an update."""
        for sid in self._put_at.keys() & sids.keys():
            for ad_id in self._put_at[sid]:
                *_, row = None, *self._changes(ad_id, update)
                if row is not None and tuple(row["sid"]) == sid:
                    yield ad_id, sid, self._passes(row, user)

    def _passes(self, row: Row, user: UserAttributes) -> bool:
        """Return whether the user may see the ad of a row, whose lists are all includes."""
        for target in (*self.snapshot.schema.attributes, *self.snapshot.schema.sets):
            if target.name in row:
                given = {*values_of(user, target.name)}
                shared = given & {*row[target.name]}
                if not shared or (isinstance(target, Attribute) and shared != given):
                    return False
        return True
