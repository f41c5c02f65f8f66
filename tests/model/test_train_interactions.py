"""The interaction log: users' order of time, leaves of the catalogue, batches, faults by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from grace.configs.errors import ConfigError, InputError
from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import ADS_FILE, LOG_FILE, DataFolder, TableSource
from grace.model.definition.spec import SequenceInput
from grace.model.train.interactions import HistoryBatches, Interactions, history_input
from grace.model.train.log_reader import read_log
from grace.proto.retrieval_pb2 import Events, Features, Ids
from support.encoder_cases import INTERFORMER
from support.plain_inputs import encode_inputs

Rows = list[dict[str, Any]]

SPEC = replace(
    INTERFORMER,
    vocab_sizes=(64, 8, 8, 8),
    inputs={"clicks": SequenceInput(max_length=5, side={"action": 8})},
)


@pytest.fixture(scope="module")
def rows(training_folder: Path) -> Rows:
    written: Rows = pq.read_table(training_folder / LOG_FILE).to_pylist()
    return written


def written(
    rows: Rows, folder: Path, without: str = "", columns: Mapping[str, str] | None = None
) -> DataFolder:
    """Write a log in Parquet, and return a data folder that has it."""
    table = pa.Table.from_pylist(rows)
    pq.write_table(table.drop_columns([without]) if without else table, folder / LOG_FILE)
    return folder_of(folder, TableSource((str(folder / LOG_FILE),), columns or {}))


def folder_of(folder: Path, log: TableSource, id_map: Path | None = None) -> DataFolder:
    ads = TableSource((str(folder / ADS_FILE),))
    return DataFolder(folder, ads, id_map=id_map, log=log)


def test_rows_in_any_order_become_events_by_user_and_time_with_the_catalogues_leaves(
    rows: Rows, training_catalogue: Snapshot, tmp_path: Path
) -> None:
    order = np.random.default_rng(1).permutation(len(rows))
    shuffled = written([rows[i] for i in order], tmp_path)
    read = read_log(shuffled, training_catalogue, ("action",))
    assert (read.rows, read.left_out) == (len(rows), 0)
    log = read.interactions
    in_order = sorted(rows, key=lambda row: (row["user_id"], row["timestamp_ms"]))
    events = np.arange(len(rows))
    assert log.sids(events).tolist() == [row["sid"] for row in in_order]
    assert log.times_ms.tolist() == [row["timestamp_ms"] for row in in_order]
    assert log.side["action"].tolist() == [row["action"] for row in in_order]
    assert log.user_ids[log.event_user].tolist() == [row["user_id"] for row in in_order]
    held_out = {row["user_id"] for row in rows if row["split"] == "test"}
    assert set(log.user_ids[log.event_user[log.held_out]].tolist()) == held_out
    assert np.array_equal(training_catalogue.trie.sids(log.leaves), log.sids(events))


def one(name: str, value: object) -> Callable[[Rows], object]:
    return lambda rows: rows[7].update({name: value})


def every(name: str, value: object) -> Callable[[Rows], object]:
    return lambda rows: [row.update({name: value}) for row in rows]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (one("sid", [63, 7, 7]), "row 8, user .*: sid '3 tokens': the SID length is 4"),
        (one("sid", [63, 7, 7, 70]), r"1 of 1,\d+ events .* first .* row 8: sid \[63, 7, 7, 70\]"),
        (one("sid", [0, 0, 0, 0]), r"row 8: sid \[0, 0, 0, 0\]; at most 0.0% .* --max-unknown"),
        (one("sid", None), r"row 8: sid None"),
        (one("split", "valid"), "column 'split' has 'valid'; it must be one of"),
        (every("split", "train"), "column split: no user is in 'test'; put some there"),
        (every("split", "test"), "column split: no user is in 'train'; put some there"),
        (one("user_id", None), "row 8: user_id: is null"),
        (every("user_id", 1.5), "column 'user_id' must be int64 or text, got double"),
        (
            every("timestamp_ms", "noon"),
            "row 1, user .*: timestamp_ms 'noon': is neither an integer nor a time",
        ),
        (every("sid", 3), "column 'sid' must be list<uint16>, got int64"),
        (list.clear, "columns 'ad_id' and 'sid' are missing; .* log.columns.ad_id"),
    ],
)
def test_a_fault_is_named(
    fault: Callable[[Rows], object],
    message: str,
    rows: Rows,
    training_catalogue: Snapshot,
    tmp_path: Path,
) -> None:
    faulty = [dict(row) for row in rows]
    fault(faulty)
    with pytest.raises(InputError, match=message):
        read_log(written(faulty, tmp_path), training_catalogue, ("action",))


def test_a_user_in_both_splits_and_a_missing_column_or_log_are_named(
    rows: Rows, training_catalogue: Snapshot, tmp_path: Path
) -> None:
    faulty = [dict(row) for row in rows]
    faulty[7]["split"] = "train" if faulty[7]["split"] == "test" else "test"
    with pytest.raises(InputError, match=f"user {rows[7]['user_id']} is in two splits"):
        read_log(written(faulty, tmp_path), training_catalogue)
    renamed = {"timestamp_ms": "seen at"}
    with pytest.raises(
        InputError, match=r"column 'seen at', which log\.columns\.timestamp_ms of .* is missing"
    ):
        read_log(written(rows, tmp_path, columns=renamed), training_catalogue)
    without = replace(written(rows, tmp_path), log=None)
    with pytest.raises(InputError, match="has no log of interactions; add `log:`"):
        read_log(without, training_catalogue)


def by_ad(rows: Rows, catalogue: Snapshot) -> Rows:
    """Return the rows with an ad of each SID, in place of the SID and the split."""
    ads, sids = catalogue.ads, catalogue.trie.sids(np.arange(111)).tolist()
    first = ads.ad_ids[ads.ad_offsets[:-1]].tolist()
    kept = ("user_id", "timestamp_ms", "action")
    return [
        {**{name: row[name] for name in kept}, "ad_id": first[sids.index(row["sid"])]}
        for row in rows
    ]


def test_without_splits_the_newest_event_of_each_user_is_held_out(
    rows: Rows, training_catalogue: Snapshot, tmp_path: Path
) -> None:
    events = by_ad(rows, training_catalogue)
    events.append({**events[0], "user_id": 10**9})  # one event: nothing before it to read
    log = read_log(written(events, tmp_path), training_catalogue).interactions
    assert log.last_events().tolist() == (log.offsets[1:-1] - 1).tolist()
    assert log.held_out.sum() == 63
    assert log.training_users() == 64
    newest = {row["user_id"]: row["sid"] for row in sorted(rows, key=itemgetter("timestamp_ms"))}
    assert log.sids(log.last_events()).tolist() == [newest[user] for user in log.user_ids[:-1]]
    sample = log.last_events(9)
    assert len(sample) == 9
    assert set(sample.tolist()) <= set(log.last_events().tolist())
    assert sample.tolist() == log.last_events(9).tolist()


def triples(log: Interactions) -> list[tuple[int, int, int]]:
    """Return user, time and leaf of every event, ascending."""
    users = log.user_ids[log.event_user].astype(np.int64).tolist()
    return sorted(zip(users, log.times_ms.tolist(), log.leaves.tolist(), strict=True))


def test_files_of_several_formats_with_other_names_ids_and_times_give_the_same_log(
    rows: Rows, training_catalogue: Snapshot, tmp_path: Path
) -> None:
    """Integers in one file and texts in the other name the same users."""
    events = [
        {**row, "timestamp_ms": row["timestamp_ms"] // 1000 * 1000}
        for row in by_ad(rows, training_catalogue)
    ]
    expected = read_log(written(events, tmp_path), training_catalogue).interactions
    numbers = sorted({row["ad_id"] for row in events})
    id_map, some = tmp_path / "ids.parquet", tmp_path / "some.parquet"
    names = [f"sku-{number:x}" for number in numbers]
    pq.write_table(pa.table({"item_id": names, "ad_id": numbers}), id_map)
    theirs = [
        (row["user_id"], f"sku-{row['ad_id']:x}", row["timestamp_ms"] // 1000) for row in events
    ]
    columns = {"user_id": "who", "ad_id": "what", "timestamp_ms": "when"}
    in_parquet = [dict(zip(columns.values(), each, strict=True)) for each in theirs[::2]]
    pq.write_table(pa.Table.from_pylist(in_parquet), some)
    lines = [f"{a},{b},{datetime.fromtimestamp(c, UTC).isoformat()}" for a, b, c in theirs[1::2]]
    (tmp_path / "more.csv").write_text("\n".join(["who,what,when", *lines]))
    files = (str(some), str(tmp_path / "more.csv"))
    source = TableSource(files, columns, time_unit="s")
    log = read_log(folder_of(tmp_path, source, id_map), training_catalogue).interactions
    assert triples(log) == triples(expected)
    with pytest.raises(InputError, match=r"is not between 1990 and 2100, in ms .* log.time_unit"):
        read_log(folder_of(tmp_path, replace(source, time_unit="ms"), id_map), training_catalogue)
    with pytest.raises(InputError, match=r"row 1: what sku-\w+; .* id_map"):
        read_log(folder_of(tmp_path, source), training_catalogue)


def test_events_of_unknown_ads_are_counted_and_left_out_up_to_a_limit(
    rows: Rows, training_catalogue: Snapshot, tmp_path: Path
) -> None:
    events = by_ad(rows, training_catalogue)
    expected = read_log(written(events, tmp_path), training_catalogue).interactions
    lost = [{**events[5], "ad_id": 3}, {**events[9], "ad_id": None}]
    folder = written([*events[:7], *lost, *events[7:]], tmp_path)
    share = 2 / (len(events) + 2)
    read = read_log(folder, training_catalogue, max_unknown=share)
    assert (read.rows, read.left_out) == (len(events) + 2, 2)
    assert read.interactions.leaves.tolist() == expected.leaves.tolist()
    fault = rf"2 of {len(events) + 2:,} events \(0\.\d%\) .* first .* row 8: ad_id 3; at most 0\.1%"
    with pytest.raises(InputError, match=fault):
        read_log(folder, training_catalogue, max_unknown=0.001)
    nobody = written([{**row, "ad_id": 3} for row in events], tmp_path)
    with pytest.raises(InputError, match=r"\(100\.0%\)"):
        read_log(nobody, training_catalogue, max_unknown=1.0)


def test_columns_named_like_attributes_say_who_the_user_is(
    rows: Rows, training_catalogue: Snapshot, tmp_path: Path
) -> None:
    said = [
        {**row, "country": "US", "location": None if place % 7 else [f"p/{place}", "p"]}
        for place, row in enumerate(rows)
    ]
    folder = written(said, tmp_path)
    assert not read_log(folder, training_catalogue).interactions.attributes
    log = read_log(folder, training_catalogue, attributes=True).interactions
    assert set(log.attributes) == {"country", "location"}
    by_time = {(row["user_id"], row["timestamp_ms"]): row["location"] for row in said}
    for event in range(0, len(rows), 11):
        place = by_time[int(log.user_ids[log.event_user[event]]), int(log.times_ms[event])]
        assert log.attributes_at(event) == {
            "country": ("US",),
            **({} if place is None else {"location": tuple(place)}),
        }


def request_before(log: Interactions, event: int) -> Features:
    begin = int(log.offsets[log.event_user[event]])
    clicks = Events(
        sids=log.sids(np.arange(begin, event)).reshape(-1).tolist(),
        timestamps_ms=log.times_ms[begin:event].tolist(),
        side={"action": Ids(ids=log.side["action"][begin:event].tolist())},
    )
    return Features(sequences={"clicks": clicks} if event > begin else {})


def test_a_batch_is_what_its_users_would_have_sent_just_before(training_log: Interactions) -> None:
    log = training_log
    first, short, long = log.offsets[3], log.offsets[3] + 2, log.offsets[5] - 1
    events = np.array([long, first, 0, short, long - 1, len(log.leaves) - 1])
    batches = HistoryBatches(log, history_input(SPEC))
    (ours,) = batches.inputs(events).sequences
    requests = [request_before(log, int(event)) for event in events]
    (theirs,) = encode_inputs(SPEC, requests).sequences
    assert torch.equal(ours.offsets, theirs.offsets)
    rows, places = ours.rows_and_places()
    assert rows.tolist() == sorted([*range(6)] * 5)
    assert places.tolist() == [*range(5)] * 6
    there = places < ours.offsets.diff()[rows]
    assert torch.equal(ours.sids[there], theirs.sids)
    assert torch.equal(ours.age_buckets[there], theirs.age_buckets)
    assert torch.equal(ours.side[0][there], theirs.side[0])
    assert ours.offsets.diff().tolist() == [5, 0, 0, 2, 5, 5]
    assert batches.targets(events).tolist() == log.sids(events).tolist()


def test_event_dropout_leaves_out_some_events_but_never_the_newest(
    training_log: Interactions,
) -> None:
    def histories(share: float) -> list[list[list[int]]]:
        (events,) = batches.inputs(asked, dropout=share).sequences
        tokens = torch.cat([events.sids, events.age_buckets[:, None]], dim=1)
        counts = events.offsets.diff().tolist()
        padded = tokens.view(len(asked), 5, -1).tolist()
        return [history[:count] for history, count in zip(padded, counts, strict=True)]

    asked = np.repeat(np.append(training_log.offsets[1:] - 1, 0), 9)
    batches = HistoryBatches(training_log, history_input(SPEC))
    torch.manual_seed(1)
    for some, all_of_them in zip(histories(0.4), histories(0.0), strict=True):
        assert some[-1:] == all_of_them[-1:]
        rest = iter(all_of_them)
        assert all(event in rest for event in some), "they keep their order"
    left = sum(len(some) - 1 for some in histories(0.4) if some)
    assert left == pytest.approx(0.6 * sum(len(x) - 1 for x in histories(0.0) if x), rel=0.03)


def test_a_model_that_the_log_cannot_train_is_refused(training_log: Interactions) -> None:
    history = replace(history_input(SPEC), side={"action": 4})
    with pytest.raises(
        InputError, match=r"column 'action' has ids 1 to 4, but .* declare 5 or more"
    ):
        HistoryBatches(training_log, history)
    with pytest.raises(ConfigError, match=r"model\.inputs\.hour: an interaction log has one"):
        history_input(INTERFORMER)
    two = {"clicks": SequenceInput(5, {}), "views": SequenceInput(5, {})}
    with pytest.raises(ConfigError, match=r"model\.inputs\.views"):
        history_input(replace(INTERFORMER, inputs={**two}))
