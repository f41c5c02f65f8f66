"""The stopped ads and live weights of one snapshot, as matching reads them.

Matching takes a `LiveView` once per batch. Its arrays change in place while threads match. This is
safe because each change stores one aligned word, which C++ reads once (`read_live`): a matcher sees
each ad in its old or its new state. A caller that must be sure that no matcher still uses the old
state waits for the batches that began before the change.

In mode `exact` decoding sees the stops, too: before each batch, the decoder asks for the changed
pairs of a leaf and a rule (`pass_pairs`). A batch under way may see them or not: matching decides.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from threading import Lock

import numpy as np

from grace.configs.arrays import Bools, Float32, Int32, Int64, UInt64
from grace.index.matchers.exact_lists import changed_pairs
from grace.index.matching.ads import NO_ENTITY
from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import places_of
from grace.index.targeting.schema import AD_LEVEL
from grace.index.updates.id_map import distinct
from grace.index.updates.state import Touched, UpdateState
from grace.index.updates.update import AdUpdate, Ids

MOST_NOTES = 256
"""The most changes of pairs that wait apart for a batch. An idle server would keep all of them."""

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class LiveView:
    """The stops and weights that one batch matches with."""

    stopped: UInt64 | None = None  # [ceil(ads / 64)], bit i: ordinal i is stopped; None: no ad is
    weights: Float32 | None = None  # [ads]; None: those of the snapshot count


class LiveAds:
    """The view of a snapshot, kept up to date.

    One thread at a time may change it. Any thread may read `view` and `ads_stopped`. The snapshot
    itself never changes: the first live weight makes a copy of its weights.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.view = LiveView()
        self.ads_stopped = 0
        self._pairs: deque[tuple[Int64, Int32]] = deque()
        self._passing = Lock()

    def pass_pairs(self, write: Callable[[Int64, Int32], None]) -> None:
        """Call `write` with what has changed in `leaf_rules` since the last call, if anything has.

        Any thread may call it. Positions are distinct. `write` must finish before it returns; if it
        raises, the next call passes the same changes again.
        """
        with self._passing:
            noted = len(self._pairs)  # an update may add others meanwhile
            if noted:
                write(*self._latest(noted))
            for _ in range(noted):
                self._pairs.popleft()

    def _latest(self, noted: int) -> tuple[Int64, Int32]:
        """Join the first notes: of a pair that changed several times, the last change counts."""
        notes = [self._pairs[place] for place in reversed(range(noted))]
        positions, rules = map(np.concatenate, zip(*notes, strict=True))
        _, last = np.unique(positions, return_index=True)
        return positions[last], rules[last]

    def rebuild(self, state: UpdateState) -> None:
        stops = {level: ids.sorted_ids() for level, ids in state.stopped.items()}
        ordinals, ads = self._ordinals(stops), self._snapshot.ads
        before = self.view.stopped
        stopped = ads.bitmap_of(ordinals) if len(ordinals) else None
        self.view = LiveView(stopped, self._weights(state))
        self.ads_stopped = len(ordinals)
        self._note_pairs(_differing(before, stopped))

    def refresh(self, state: UpdateState, touched: Touched) -> None:
        """Show the state, which differs from the one shown only in what was touched."""
        if touched.everything:
            self.rebuild(state)
            return
        ordinals = self._ordinals(touched.stops)
        if len(ordinals):
            self._write_stops(ordinals, self._are_stopped(state, ordinals))
        if len(touched.weights):
            self._write_weights(state, touched.weights)

    def _write_stops(self, ordinals: Int64, stopped: Bools) -> None:
        words = self.view.stopped
        if words is None:
            if not stopped.any():
                return
            words = self._snapshot.ads.bitmap_of(_NONE)
        at, bits = ordinals >> 6, np.uint64(1) << (ordinals & 63).astype(np.uint64)
        before = (words[at] & bits) != 0
        np.bitwise_or.at(words, at[stopped], bits[stopped])
        np.bitwise_and.at(words, at[~stopped], ~bits[~stopped])
        self.view = LiveView(words, self.view.weights)
        self.ads_stopped += int(stopped.sum()) - int(before.sum())
        self._note_pairs(ordinals[stopped != before])

    def _note_pairs(self, ordinals: Int64) -> None:
        lists = self._snapshot.exact
        if lists is None or not len(ordinals):
            return
        ads, rules = self._snapshot.ads, self._snapshot.rules
        self._pairs.append(changed_pairs(ads, rules, lists, self.view.stopped, ordinals))
        if len(self._pairs) > MOST_NOTES:
            with self._passing:
                if self._pairs:
                    joined = self._latest(len(self._pairs))
                    self._pairs.clear()
                    self._pairs.append(joined)

    def _write_weights(self, state: UpdateState, ad_ids: Ids) -> None:
        weights, ads = self.view.weights, self._snapshot.ads
        if weights is None:
            self.view = LiveView(self.view.stopped, self._weights(state))
            return
        ordinals = ads.ordinals(ad_ids)
        known = ordinals >= 0
        news, usual = state.weights.of(ad_ids[known]), ads.ad_weight[ordinals[known]]
        weights[ordinals[known]] = np.where(np.isnan(news), usual, news)

    def _weights(self, state: UpdateState) -> Float32 | None:
        (ad_ids, news), ads = state.weights.items(), self._snapshot.ads
        ordinals = ads.ordinals(ad_ids)
        known = ordinals >= 0
        if not known.any():
            return None
        weights = ads.ad_weight.copy()
        weights[ordinals[known]] = news[known]
        return weights

    def _ordinals(self, stops: Mapping[str, Ids]) -> Int64:
        """Return the ordinals of all ads that these ids name, ascending, each once."""
        found = [self._snapshot.ads.ordinals(stops.get(AD_LEVEL, _NONE))]
        for entities in self._snapshot.entities:
            places = entities.places(stops.get(entities.name, _NONE))
            of_places = places_of(entities.offsets, places[places >= 0])[1]
            found.append(entities.ads[of_places].astype(np.int64))
        ordinals = np.concatenate(found)
        return distinct(ordinals[ordinals >= 0])

    def _are_stopped(self, state: UpdateState, ordinals: Int64) -> Bools:
        """Return for each ordinal whether any level stops it."""
        stopped = np.zeros(len(ordinals), np.bool_)
        if AD_LEVEL in state.stopped:
            stopped |= state.stopped[AD_LEVEL].of(self._snapshot.ads.ad_ids[ordinals])
        for entities in self._snapshot.entities:
            if entities.name in state.stopped:
                places = entities.of_ad[ordinals]
                has = places >= 0
                ids = entities.ids[places[has]]
                stopped[has] |= state.stopped[entities.name].of(ids)
        return stopped


def _differing(one: UInt64 | None, other: UInt64 | None) -> Int64:
    """Return the ordinals whose bits differ, ascending. None has no bit."""
    given = [each for each in (one, other) if each is not None]
    if not given:
        return _NONE
    words: UInt64 = reduce(np.bitwise_xor, given)
    at = np.flatnonzero(words)
    bits = np.unpackbits(words[at].view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    rows, places = bits.nonzero()
    return at[rows] * 64 + places


def levels_of(snapshot: Snapshot, ordinal: int) -> dict[str, int]:
    """Return the ids by which updates stop an ad, and requests exclude it: by level."""
    levels = {AD_LEVEL: int(snapshot.ads.ad_ids[ordinal])}
    for entities in snapshot.entities:
        place = int(entities.of_ad[ordinal])
        if place != NO_ENTITY:
            levels[entities.name] = int(entities.ids[place])
    return levels


def unknown_ids(snapshot: Snapshot, update: AdUpdate, absent: Sequence[int] = ()) -> dict[str, Ids]:
    """Return the stopped and resumed ids that the snapshot lacks, and `absent` ads, by level."""
    entities = {each.name: each for each in snapshot.entities}
    found = {}
    for level in sorted({*update.stop, *update.resume}):
        ids = np.concatenate([update.stop.get(level, _NONE), update.resume.get(level, _NONE)])
        if level == AD_LEVEL:
            ids = ids[snapshot.ads.ordinals(ids) < 0]
        elif level in entities:
            ids = ids[entities[level].places(ids) < 0]
        if len(ids):
            found[level] = np.sort(ids)  # no id is both stopped and resumed
    if absent:
        found[AD_LEVEL] = np.union1d(found.get(AD_LEVEL, _NONE), absent)
    return found
