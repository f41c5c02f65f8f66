"""Updates of ads, and ads put and removed, against plain sets and dictionaries."""

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import RequestError
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import Attribute, TargetingSchema
from grace.index.updates import puts, state
from grace.index.updates.id_map import MOST_CHANGES, IdMap
from grace.index.updates.live_ads import MOST_NOTES, LiveAds, unknown_ids
from grace.index.updates.puts import read_kept, take_puts
from grace.index.updates.state import (
    NO_WEIGHT,
    GapError,
    Size,
    UpdateState,
    require_room,
    touched_by,
)
from grace.index.updates.update import AdUpdate
from grace.proto.retrieval_pb2 import UpdateAdsRequest
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.plain_updates import (
    EntityCatalogue,
    PlainState,
    assert_weights_equal,
    entity_catalogue,
    named,
    random_update,
)
from support.strategies import examples
from support.update_calls import update


def read(request: UpdateAdsRequest) -> AdUpdate:
    return read_kept(request.SerializeToString())


def stopped_in(live: LiveAds, snapshot: Snapshot) -> set[int]:
    if live.view.stopped is None:
        return set()
    bits = np.unpackbits(live.view.stopped.view(np.uint8), bitorder="little")
    assert not bits[snapshot.ads.num_ads :].any()
    return set(snapshot.ads.ad_ids[np.flatnonzero(bits)].tolist())


def weights_in(live: LiveAds, snapshot: Snapshot) -> dict[int, float]:
    weights = snapshot.ads.ad_weight if live.view.weights is None else live.view.weights
    return dict(zip(snapshot.ads.ad_ids.tolist(), weights.tolist(), strict=True))


def assert_shows(live: LiveAds, catalogue: EntityCatalogue, plain: PlainState) -> None:
    expected = catalogue.stopped_by(plain)
    assert stopped_in(live, catalogue.snapshot) == expected
    assert live.ads_stopped == len(expected)
    assert_weights_equal(weights_in(live, catalogue.snapshot), catalogue.weights_under(plain))


@examples(14)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_a_snapshot_shows_equals_plain_sets_after_any_updates(seed: int) -> None:
    """One snapshot shows groups of updates as they come, a later one the whole state at once."""
    rng = np.random.default_rng(seed)
    catalogues = [entity_catalogue(rng, 63, version=each) for each in (1, 2)]
    untouched = catalogues[0].snapshot.ads.ad_weight.copy()
    state, plain = UpdateState(), PlainState()
    first, second = (LiveAds(each.snapshot) for each in catalogues)
    sequence = 1
    for _ in range(11):
        group = [
            random_update(rng, sequence + each, 126) for each in range(int(rng.integers(1, 4)))
        ]
        sequence += len(group)
        updates = list(map(read, group))
        assert [state.apply(each) for each in updates] == [plain.apply(each) for each in group]
        first.refresh(state, touched_by(updates))
        assert_shows(first, catalogues[0], plain)
    second.rebuild(state)
    assert_shows(second, catalogues[1], plain)
    assert {
        (level, each) for level, ids in state.stopped.items() for each in ids.sorted_ids().tolist()
    } == plain.stopped
    assert np.array_equal(catalogues[0].snapshot.ads.ad_weight, untouched)
    copied = UpdateState()
    for message in state.full_messages():
        copied.apply(read_kept(bytes(message)))
    second.rebuild(copied)
    assert (copied.sequence, copied.size) == (state.sequence, state.size)
    assert_shows(second, catalogues[1], plain)


@examples(11)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_id_map_equals_a_plain_one_however_large_its_changes_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stops, weights = IdMap(np.False_), IdMap(NO_WEIGHT)
    stopped, weighted = set[int](), dict[int, float]()
    for _ in range(9):
        size = int(rng.choice([0, 1, 63, MOST_CHANGES + 7]))
        ids = np.sort(rng.choice(9999, size, replace=False))
        some = ids.tolist()
        present = bool(rng.random() < 0.6)
        values = rng.integers(0, 3, size).astype(np.float32)
        stops.put(ids, present)
        weights.put(ids, values if present else NO_WEIGHT)
        if present:
            stopped |= set(some)
            weighted |= dict(zip(some, values.tolist(), strict=True))
        else:
            stopped -= set(some)
            weighted = {key: each for key, each in weighted.items() if key not in set(some)}
        asked = rng.integers(-9, 9999, 111)
        assert stops.of(asked).tolist() == [each in stopped for each in asked.tolist()]
        np.testing.assert_array_equal(
            weights.of(asked), [weighted.get(each, np.nan) for each in asked.tolist()]
        )
        assert (len(stops), len(weights)) == (len(stopped), len(weighted))
        assert stops.sorted_ids().tolist() == sorted(stopped)
        assert dict(zip(*map(np.ndarray.tolist, weights.items()), strict=True)) == weighted
        after, most = int(asked[0]), int(rng.integers(1, 999))
        above = sorted(each for each in stopped if each > after)[:most]
        assert stops.sorted_ids(after, most).tolist() == above


@given(seed=st.integers(0, 2**32 - 1))
@examples(20)
def test_unknown_ids_are_those_that_no_ad_has(seed: int) -> None:
    rng = np.random.default_rng(seed)
    catalogue = entity_catalogue(rng, 63)
    known = {("ad", ad.ad_id) for ad in catalogue.ads}
    known |= {each for ad in catalogue.ads for each in ad.entities.items()}
    for sequence in range(1, 9):
        request = random_update(rng, sequence, 126)
        request.stop["shop"].ids.extend([7, 3])
        found = unknown_ids(catalogue.snapshot, read(request))
        assert found["shop"].tolist() == [3, 7]
        assert all(ids.tolist() == sorted(ids.tolist()) for ids in found.values())
        asked = named(request.stop) | named(request.resume)
        assert {(level, each) for level in found for each in found[level].tolist()} == asked - known


def test_old_numbers_change_nothing_and_a_gap_is_refused_with_the_number_expected() -> None:
    state = UpdateState()
    assert state.apply(read(update(1, stop={"ad": [7]})))
    assert not state.apply(read(update(1, resume={"ad": [7]})))
    assert state.size.ids == 1
    with pytest.raises(GapError, match="3 does not follow 1; send 2, or a FULL update"):
        state.apply(read(update(3, resume={"ad": [7]})))
    assert (state.sequence, state.size.ids) == (1, 1)
    assert state.apply(read(update(63, full=True, stop={"ad": [9], "campaign": [1]})))
    assert not state.apply(read(update(62, full=True)))
    assert (state.sequence, {level: len(ids) for level, ids in state.stopped.items()}) == (
        63,
        {"ad": 1, "campaign": 1},
    )


def exact_snapshot() -> Snapshot:
    ads = [RawAd(ad_id, (0,)) for ad_id in range(3)]
    return plain_snapshot(TargetingSchema((), (), 7), (1,), ads, MatcherMode.EXACT)


def stops_and_resumes(count: int) -> list[AdUpdate]:
    """Return updates that stop all ads of `exact_snapshot` and resume them, in turn."""
    all_ads = {"ad": [0, 1, 2]}
    return [
        read(update(number, stop=all_ads) if number % 2 else update(number, resume=all_ads))
        for number in range(1, count + 1)
    ]


def test_a_changed_pair_is_passed_until_a_write_succeeds() -> None:
    snapshot, state = exact_snapshot(), UpdateState()
    live = LiveAds(snapshot)

    def fails(positions: npt.NDArray[np.int64], rules: npt.NDArray[np.int32]) -> None:  # noqa: ARG001
        raise MemoryError

    for each in stops_and_resumes(2):
        state.apply(each)
        live.refresh(state, touched_by([each]))
        with pytest.raises(MemoryError):
            live.pass_pairs(fails)
    written: list[tuple[list[int], list[int]]] = []
    for _ in range(2):
        live.pass_pairs(lambda at, rules: written.append((at.tolist(), rules.tolist())))
    assert written == [([0], [0])]


def test_changed_pairs_take_little_memory_while_no_batch_asks_for_them() -> None:
    snapshot, state = exact_snapshot(), UpdateState()
    live = LiveAds(snapshot)
    held = []
    updates = stops_and_resumes(6 * MOST_NOTES)  # the first third also fills caches
    tracemalloc.start()
    for each in updates:
        state.apply(each)
        live.refresh(state, touched_by([each]))
        if each.sequence % (2 * MOST_NOTES) == 0:
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert held[2] < 1.1 * held[1]
    written: list[tuple[list[int], list[int]]] = []
    live.pass_pairs(lambda at, rules: written.append((at.tolist(), rules.tolist())))
    assert written == [([0], [0])]


def test_ordinals_of_ad_ids_equal_a_plain_look_up() -> None:
    rng = np.random.default_rng(3)
    schema = TargetingSchema((), (), hash_seed=3)
    for many in (1, 2, 63, 64, 65, 1111):
        ids = rng.choice(2**40, many, replace=False).tolist()
        snapshot = plain_snapshot(schema, (9,), [RawAd(ad_id, (ad_id % 9,)) for ad_id in ids])
        plain = {ad_id: ordinal for ordinal, ad_id in enumerate(snapshot.ads.ad_ids.tolist())}
        wanted = [*ids, -(2**63), -1, 0, min(ids) - 1, max(ids) + 1, 2**63 - 1, *ids[:7]]
        assert snapshot.ads.ordinals(wanted).tolist() == [plain.get(each, -1) for each in wanted]
        assert snapshot.ads.ordinals([]).tolist() == []


SCHEMA = TargetingSchema((Attribute("country", ("NO", "SE")),), (), 7, ("campaign",))
SNAPSHOT = plain_snapshot(SCHEMA, (3, 5), [RawAd(1, (1, 2))], MatcherMode.EXACT)


def row(ad_id: object, **more: object) -> str:
    return json.dumps({"ad_id": ad_id, "sid": [1, 2], **more})


def changing(rng: np.random.Generator, sequence: int) -> list[UpdateAdsRequest]:
    """A DELTA, or a FULL in parts, some of whose changes come from older updates."""
    ids = rng.choice(13, 5, replace=False).tolist()
    rows = [row(ad_id, at=int(rng.integers(3))) for ad_id in ids[:3]]
    if rng.random() < 0.3:
        return [update(sequence, stop={"ad": ids})]
    if rng.random() < 0.7:
        return [update(sequence, put=rows, remove=ids[3:])]
    parts, old = int(rng.integers(1, 4)), int(rng.integers(sequence + 1))
    put = [rows[part::parts] for part in range(parts)]
    more: list[dict[str, Any]] = [
        {"part": part + 1, "parts": parts, "put": put[part]} for part in range(parts)
    ]
    more[-1] |= {"remove": ids[3:], "changed_at": old}
    return [update(sequence, full=True, **each) for each in more]


@examples(60)
@given(seed=st.integers(0, 2**32 - 1))
def test_changes_equal_plain_ones_after_any_updates_drops_and_rewrites(seed: int) -> None:
    rng, plain, kept = np.random.default_rng(seed), PlainState(), UpdateState()
    shows = {at: plain.changed_after(0) for at in (0,)}  # what a snapshot has, by its last update
    for sequence in range(1, 12):
        for message in changing(rng, sequence):
            kept.apply(read_kept(message.SerializeToString()))
            plain.apply(message)
        if rng.random() < 0.2:
            through = int(rng.integers(sequence))
            kept.ads.drop(through)
            plain.changes = {k: each for k, each in plain.changes.items() if each[0] > through}
            shows = {at: each for at, each in shows.items() if at >= through}
        if rng.random() < 0.2:
            rewritten = UpdateState()
            for each in kept.full_messages():
                rewritten.apply(read_kept(bytes(each)))
            assert (rewritten.sequence, rewritten.size) == (kept.sequence, kept.size)
            rewritten.ads.last, rewritten.ads.rebased = kept.ads.last, kept.ads.rebased
            kept = rewritten
        for begin in range(sequence + 1):
            found = {ad_id: each and each.decode() for ad_id, each in kept.ads.after(begin)}
            assert found == plain.changed_after(begin)
        assert_leads_on(kept, plain, shows)
        shows[sequence] = dict(plain.changed_after(0))
    assert kept.size.row_bytes == sum(len(each or "") for _, each in plain.changes.values())


def assert_leads_on(
    kept: UpdateState, plain: PlainState, shows: dict[int, dict[int, str | None]]
) -> None:
    """From any update that is not older than `rebased`, later changes lead to the whole state."""
    for at, shown in shows.items():
        if at >= kept.ads.rebased:
            later = {ad_id: each and each.decode() for ad_id, each in kept.ads.after(at)}
            whole = plain.changed_after(0)
            assert {k: each for k, each in (shown | later).items() if k in whole} == whole


def test_a_state_too_large_is_refused_and_a_full_one_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "MOST_CHANGES", 3)
    delta = read_kept(update(1, put=[row(1), row(2)]).SerializeToString())
    size = require_room(Size(), [delta])
    assert size == Size(0, 2, 2 * len(row(1)))
    with pytest.raises(RequestError, match="put: up to 4 ads put or removed after this update, at"):
        require_room(size, [delta])
    assert require_room(size, [replace(delta, full=True)]) == size


def refused(*rows: str | bytes) -> dict[int, str]:
    given = [each if isinstance(each, bytes) else each.encode() for each in rows]
    taken = take_puts(SNAPSHOT, given, 1)
    ids = [
        json.loads(each)["ad_id"]
        for place, each in enumerate(given)
        if place not in {each.place for each in taken.refused}
    ]
    assert [*taken.ids] == ids
    return {each.place: each.text for each in taken.refused}


FAULTS: list[tuple[Any, str]] = [
    (row(7, sid=[1, 5]), "sid: 5: token at position 1 is outside the vocabulary of 5"),
    (row(7, sid="x"), "column 'sid' must be list<uint16>, got string"),
    (row("7"), "column 'ad_id' must be int64, got string"),
    ('{"sid": [1, 2]}', "ad_id"),
    ("{}", "ad_id"),
    ("", "not a JSON object; send one for each ad"),
    ("\v" + row(7), "not a JSON object; send one for each ad"),
    ("[1]", "not a JSON object; send one for each ad"),
    ('{"ad_id": 7', "not a JSON object"),
    ('{"ad_id": 7}}', ""),
    (row(7) + row(8), "2 JSON objects; send one for each ad"),
    (row(7, Country=["NO"]), "Country"),
    (row(7, title=0).replace("0", "[" * 20_000 + "]" * 20_000), "more than 64 objects and lists"),
    (
        row(7, title=["]" * 99, 0]).replace("0", '{"a":' * 63 + "0" + "}" * 63),
        "more than 64 objects",
    ),
    (row(7, country=["DK"]), "country: DK: is not among the values that the schema lists"),
]


@pytest.mark.parametrize(("wrong", "fault"), FAULTS, ids=str)
def test_a_row_that_cannot_be_taken_is_refused_alone(wrong: str, fault: str) -> None:
    good = [row(each, country=["NO"], campaign=3, title="x") for each in range(20, 31)]
    found = refused(*good[:4], wrong, *good[4:], row(50).replace(",", ",\n"))
    assert [*found] == [4]
    assert found[4].startswith(fault), found


def test_rows_that_fail_are_refused_together_once_too_many_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(puts, "MOST_FAILED", 9)
    found = refused(*(row(each) if each % 2 else "{" for each in range(64)), row(64))
    assert any("rows that were read together" in fault for fault in found.values())
    repeated = "ad_id: is repeated; no copy of it is taken"
    assert refused(row(5), row(6), row(5)) == {0: repeated, 2: repeated}


def test_rows_with_values_of_other_types_are_all_taken_in_few_pieces() -> None:
    """Rows of many updates are read together: each of them was taken before."""
    more = ({"title": "x"}, {"title": 5, "country": ["NO"]}, {"title": None}, {"TITLE": None})
    rows = [row(each, **more[each % 4]).encode() for each in range(900)]
    taken = take_puts(SNAPSHOT, rows, 1)
    assert (taken.ids, taken.refused, len(taken.pieces)) == (tuple(range(900)), (), 3)
    assert refused(*rows[:50], b'{"ad_id": 1', *rows[50:]).keys() == {50}


def test_a_row_with_as_many_levels_as_may_be_is_taken_and_replays() -> None:
    for begin, end in (("[", "]"), ('{"a":', "}")):
        text = row(7, title=0).replace("0", begin * 62 + f'"{"[" * 99}"' + end * 62)
        assert refused(text) == {}
        read_kept(update(1, put=[text]).SerializeToString())


@examples(300)
@given(st.data())
def test_the_log_replays_every_row_that_was_taken(data: st.DataObject) -> None:
    """A row that Python cannot read would keep the server from starting."""
    good = row(7, country=["NO"], title="x y").encode()
    begin, end = sorted(data.draw(st.integers(0, len(good))) for _ in range(2))
    piece = data.draw(st.text(' \t\n\r\v\f\0{}[],:"\\\\u0deE19.-\ufeff\xa0', max_size=5)).encode()
    mangled = good[:begin] + piece + good[end if data.draw(st.booleans()) else begin :]
    taken = take_puts(SNAPSHOT, [row(5).encode(), mangled, row(6).encode()], 1)
    rows = [row(5), *[mangled.decode()] * (len(taken.ids) == 3), row(6)]
    assert read_kept(update(1, put=rows).SerializeToString()).put_ids == taken.ids
