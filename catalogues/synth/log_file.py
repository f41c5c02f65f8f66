"""The interaction log, and its Parquet file: a row for each event, by user and time."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace.catalogues.arrays import BoolArray, Int64Array, frozen, offsets_of, position_in_run
from grace.catalogues.folder import sid_column, sid_metadata
from grace.catalogues.synth.browsing import NOTHING, Browsing, Kind, People, User
from grace.catalogues.synth.catalogue import Catalogue
from grace.catalogues.synth.spec import ACTION_IDS, ACTION_ODDS, HOUR_MS, MINUTE_MS, NOW_MS, Stream
from grace.catalogues.synth.users import draw_users

FEWEST_EVENTS, MOST_EVENTS = 10, 40  # of a user
PROFILES = 1_000  # distinct attributes, sets and tastes of users
TEST_SHARE = 0.15  # of the users, with all their events

_WITHIN_SESSION_MS = 3 * MINUTE_MS  # mean time between events
_BETWEEN_SESSIONS_MS = 20 * HOUR_MS
_QUIET_MS = 72 * HOUR_MS  # mean time since a user's newest event


@dataclass(frozen=True, slots=True)
class InteractionLog:
    """The events of one user after another, oldest first."""

    users: list[User]
    people: People  # [users]
    offsets: Int64Array  # [users + 1] offsets into the events
    items: Int64Array  # [events] indices of SIDs
    times_ms: Int64Array  # [events]
    actions: Int64Array  # [events]
    held_out: BoolArray  # [users]

    @property
    def event_user(self) -> Int64Array:
        """[events]"""
        return np.repeat(np.arange(len(self.held_out)), np.diff(self.offsets))


def make_log(catalogue: Catalogue) -> InteractionLog:
    """Return the interactions of `spec.log_users` people, the same on every call.

    There are fewer if the catalogue has no ad for some of them.
    """
    rng, browsing = catalogue.spec.rng(Stream.LOG), Browsing.over(catalogue)
    profiles = draw_users(catalogue, [Kind.ORDINARY] * PROFILES, rng)
    profile = rng.integers(PROFILES, size=catalogue.spec.log_users)
    people = browsing.people(profiles, profile, rng)
    items, opens = browsing.walk(people, MOST_EVENTS, rng)
    kept = np.flatnonzero(items[:, 0] != NOTHING)
    items, opens, users = items[kept], opens[kept], len(kept)
    offsets = offsets_of(rng.integers(FEWEST_EVENTS, MOST_EVENTS + 1, users))
    place = np.repeat(np.arange(users), np.diff(offsets)), position_in_run(offsets)
    held_out = np.zeros(users, np.bool_)
    held_out[rng.permutation(users)[: round(users * TEST_SHARE)]] = True
    return InteractionLog(
        users=[profiles[each] for each in profile[kept]],
        people=people.rows(kept),
        offsets=offsets,
        items=frozen(items[place]),
        times_ms=frozen(_times(offsets, opens[place], rng)),
        actions=frozen(rng.choice(ACTION_IDS, len(place[0]), p=ACTION_ODDS)),
        held_out=frozen(held_out),
    )


def write_log(catalogue: Catalogue, log: InteractionLog, path: Path) -> None:
    spec, user = catalogue.spec, log.event_user
    split = pa.array(["train", "test"]).take(pa.array(log.held_out[user].astype(np.int32)))
    table = pa.table(
        {
            "user_id": pa.array(user + 1),
            "sid": sid_column(catalogue.tree.sids[log.items]),
            "timestamp_ms": pa.array(log.times_ms),
            "action": pa.array(log.actions),
            "split": split,
        }
    )
    metadata = sid_metadata(spec.sid_space, spec.vocab_sizes)
    pq.write_table(table.replace_schema_metadata(metadata), path)


def _times(offsets: Int64Array, opens: BoolArray, rng: np.random.Generator) -> Int64Array:
    """Ascending within a user, all before NOW_MS."""
    mean = np.where(opens, _BETWEEN_SESSIONS_MS, _WITHIN_SESSION_MS)
    elapsed = np.cumsum(1000 + rng.exponential(mean).astype(np.int64))
    newest = NOW_MS - 1000 - rng.exponential(_QUIET_MS, len(offsets) - 1).astype(np.int64)
    lag = newest - elapsed[offsets[1:] - 1]
    return elapsed + np.repeat(lag, np.diff(offsets))
