"""Reading the interaction log: users' order of time, leaves of the catalogue, faults by name."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.snapshot import Snapshot
from grace.model.train.interactions import Interactions, read_interactions
from grace.model.train.run import LOG_FILE, catalogue_of
from support.training import write_small_data

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    write_small_data(folder)
    return folder


@pytest.fixture(scope="module")
def catalogue(data: Path) -> Snapshot:
    return catalogue_of(data)


@pytest.fixture(scope="module")
def rows(data: Path) -> Rows:
    written: Rows = pq.read_table(data / LOG_FILE).to_pylist()
    return written


@pytest.fixture(scope="module")
def log(data: Path, catalogue: Snapshot) -> Interactions:
    return read_interactions(data / LOG_FILE, catalogue.trie, ("action",))


def write(rows: Rows, path: Path, without: str = "") -> Path:
    table = pa.Table.from_pylist(rows)
    pq.write_table(table.drop_columns([without]) if without else table, path)
    return path


def test_events_are_the_rows_by_user_and_time(log: Interactions, rows: Rows) -> None:
    in_order = sorted(rows, key=lambda row: (row["user_id"], row["timestamp_ms"]))
    assert log.sids.tolist() == [row["sid"] for row in in_order]
    assert log.times_ms.tolist() == [row["timestamp_ms"] for row in in_order]
    assert log.side["action"].tolist() == [row["action"] for row in in_order]
    assert log.user_ids[log.event_user].tolist() == [row["user_id"] for row in in_order]
    held_out = {row["user_id"] for row in rows if row["split"] == "test"}
    assert set(log.user_ids[log.held_out].tolist()) == held_out


def test_leaves_are_the_catalogues(log: Interactions, catalogue: Snapshot) -> None:
    assert np.array_equal(catalogue.trie.sids(log.leaves), log.sids)


def test_rows_may_come_in_any_order(
    log: Interactions, rows: Rows, catalogue: Snapshot, tmp_path: Path
) -> None:
    shuffled = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    again = read_interactions(write(shuffled, tmp_path / "log"), catalogue.trie, ("action",))
    for name in ("offsets", "user_ids", "held_out", "sids", "leaves", "times_ms"):
        assert np.array_equal(getattr(again, name), getattr(log, name)), name


def test_held_out_users_give_no_example_and_one_question(log: Interactions) -> None:
    held_out = log.held_out[log.event_user]
    assert np.array_equal(np.sort(log.examples()), np.flatnonzero(~held_out))
    questions = log.last_events()
    assert len(questions) == log.held_out.sum()
    assert all(event + 1 in log.offsets and held_out[event] for event in questions.tolist())


def test_counts_and_transitions_are_those_of_training_users(log: Interactions) -> None:
    counts = np.zeros(111, np.int64)
    pairs: list[tuple[int, int]] = []
    for user, (begin, end) in enumerate(zip(log.offsets[:-1], log.offsets[1:], strict=True)):
        history = [] if log.held_out[user] else log.leaves[begin:end].tolist()
        np.add.at(counts, history, 1)
        pairs += pairwise(history)
    assert np.array_equal(log.leaf_counts(111), counts)
    assert log.transitions().tolist() == [list(pair) for pair in pairs]


def change(name: str, value: object) -> Callable[[Rows], None]:
    def changed(rows: Rows) -> None:
        rows[7][name] = value

    return changed


def every(name: str, value: object) -> Callable[[Rows], None]:
    def changed(rows: Rows) -> None:
        for row in rows:
            row[name] = value

    return changed


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (change("sid", [63, 7, 7]), "row 7: sid has 3 tokens, the catalogue's have 4"),
        (change("sid", [63, 7, 7, 70]), r"row 7: SID \[63, 7, 7, 70\] is not in the catalogue"),
        (change("sid", [0, 0, 0, 0]), r"row 7: SID \[0, 0, 0, 0\] is not in the catalogue"),
        (change("split", "valid"), "column 'split' has 'valid'; it must be one of"),
        (every("split", "train"), "column split needs users of both kinds"),
        (every("split", "test"), "column split needs users of both kinds"),
        (change("user_id", None), "column 'user_id' has nulls"),
        (every("action", "view"), "column 'action' must be of integers, got string"),
        (every("sid", 3), "column 'sid' must be lists of integers, got int64"),
        (list.clear, "column 'user_id' is missing"),
    ],
)
def test_a_fault_is_named(
    fault: Callable[[Rows], None],
    message: str,
    rows: Rows,
    catalogue: Snapshot,
    tmp_path: Path,
) -> None:
    faulty = [dict(row) for row in rows]
    fault(faulty)
    with pytest.raises(InputError, match=message):
        read_interactions(write(faulty, tmp_path / "log"), catalogue.trie, ("action",))


def test_a_user_in_both_splits_is_named(rows: Rows, catalogue: Snapshot, tmp_path: Path) -> None:
    faulty = [dict(row) for row in rows]
    faulty[7]["split"] = "train" if faulty[7]["split"] == "test" else "test"
    with pytest.raises(InputError, match=f"user {rows[7]['user_id']} is in both splits"):
        read_interactions(write(faulty, tmp_path / "log"), catalogue.trie)


def test_a_missing_column_and_a_missing_file_are_named(
    rows: Rows, catalogue: Snapshot, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="column 'timestamp_ms' is missing"):
        read_interactions(write(rows, tmp_path / "log", "timestamp_ms"), catalogue.trie)
    with pytest.raises(InputError, match=r"nowhere\.parquet: cannot be read"):
        read_interactions(tmp_path / "nowhere.parquet", catalogue.trie)
    (tmp_path / "text").write_text("user_id,sid\n")
    with pytest.raises(InputError, match="text: cannot be read"):
        read_interactions(tmp_path / "text", catalogue.trie)
