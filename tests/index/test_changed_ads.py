"""Ads that updates put and remove: the state against plain dictionaries, and rows as read."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import RequestError
from grace.index.targeting.schema import Attribute, TargetingSchema
from grace.index.updates import puts, state
from grace.index.updates.puts import read_kept, take_puts
from grace.index.updates.state import Size, UpdateState, require_room
from grace.proto.retrieval_pb2 import UpdateAdsRequest
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.plain_updates import PlainState
from support.strategies import examples
from support.update_calls import update

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
