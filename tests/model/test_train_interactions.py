"""The interaction log: users' order of time, leaves of the catalogue, batches, faults by name."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from grace.configs.errors import ConfigError, InputError
from grace.index.snapshot import Snapshot
from grace.model.definition.spec import SequenceInput
from grace.model.train.interactions import (
    HistoryBatches,
    Interactions,
    history_input,
    read_interactions,
)
from grace.model.train.run import LOG_FILE
from support.encoder_cases import INTERFORMER
from support.plain_inputs import EventSequence, RequestFeatures, encode_inputs

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


def write(rows: Rows, path: Path, without: str = "") -> Path:
    table = pa.Table.from_pylist(rows)
    pq.write_table(table.drop_columns([without]) if without else table, path)
    return path


def test_rows_in_any_order_become_events_by_user_and_time_with_the_catalogues_leaves(
    rows: Rows, training_catalogue: Snapshot, tmp_path: Path
) -> None:
    order = np.random.default_rng(1).permutation(len(rows))
    shuffled = write([rows[i] for i in order], tmp_path / "log")
    log = read_interactions(shuffled, training_catalogue.trie, ("action",))
    in_order = sorted(rows, key=lambda row: (row["user_id"], row["timestamp_ms"]))
    assert log.sids.tolist() == [row["sid"] for row in in_order]
    assert log.times_ms.tolist() == [row["timestamp_ms"] for row in in_order]
    assert log.side["action"].tolist() == [row["action"] for row in in_order]
    assert log.user_ids[log.event_user].tolist() == [row["user_id"] for row in in_order]
    held_out = {row["user_id"] for row in rows if row["split"] == "test"}
    assert set(log.user_ids[log.held_out].tolist()) == held_out
    assert np.array_equal(training_catalogue.trie.sids(log.leaves), log.sids)


def test_training_users_give_all_examples_and_held_out_users_their_newest_event(
    training_log: Interactions,
) -> None:
    log = training_log
    held_out = log.held_out[log.event_user]
    assert np.array_equal(np.sort(log.examples()), np.flatnonzero(~held_out))
    newest = log.last_events()
    assert len(newest) == log.held_out.sum()
    assert all(event + 1 in log.offsets and held_out[event] for event in newest.tolist())
    counts = np.zeros(111, np.int64)
    pairs: list[tuple[int, int]] = []
    for user, (begin, end) in enumerate(pairwise(log.offsets)):
        history = [] if log.held_out[user] else log.leaves[begin:end].tolist()
        np.add.at(counts, history, 1)
        pairs += pairwise(history)
    assert np.array_equal(log.leaf_counts(111), counts)
    assert log.transitions().tolist() == [list(pair) for pair in pairs]


def one(name: str, value: object) -> Callable[[Rows], object]:
    return lambda rows: rows[7].update({name: value})


def every(name: str, value: object) -> Callable[[Rows], object]:
    return lambda rows: [row.update({name: value}) for row in rows]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (one("sid", [63, 7, 7]), "row 7: sid has 3 tokens, the catalogue's have 4"),
        (one("sid", [63, 7, 7, 70]), r"row 7: SID \[63, 7, 7, 70\] is not in the catalogue"),
        (one("sid", [0, 0, 0, 0]), r"row 7: SID \[0, 0, 0, 0\] is not in the catalogue"),
        (one("sid", [0, 0, 0, -1]), r"row 7: SID \[0, 0, 0, -1\] is not in the catalogue"),
        (one("sid", [1 << 32, 0, 0, 0]), r"row 7: SID \[4294967296, 0, 0, 0\] is not in the"),
        (one("split", "valid"), "column 'split' has 'valid'; it must be one of"),
        (every("split", "train"), "column split needs users of both kinds"),
        (every("split", "test"), "column split needs users of both kinds"),
        (one("user_id", None), "column 'user_id' has nulls"),
        (every("action", "view"), "column 'action' must be of integers, got string"),
        (every("sid", 3), "column 'sid' must be lists of integers, got int64"),
        (list.clear, "column 'user_id' is missing"),
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
        read_interactions(write(faulty, tmp_path / "log"), training_catalogue.trie, ("action",))


def test_a_user_in_both_splits_and_a_missing_column_or_file_are_named(
    rows: Rows, training_catalogue: Snapshot, tmp_path: Path
) -> None:
    trie = training_catalogue.trie
    faulty = [dict(row) for row in rows]
    faulty[7]["split"] = "train" if faulty[7]["split"] == "test" else "test"
    with pytest.raises(InputError, match=f"user {rows[7]['user_id']} is in both splits"):
        read_interactions(write(faulty, tmp_path / "log"), trie)
    with pytest.raises(InputError, match="column 'timestamp_ms' is missing"):
        read_interactions(write(rows, tmp_path / "log", "timestamp_ms"), trie)
    with pytest.raises(InputError, match=r"nowhere\.parquet: cannot be read"):
        read_interactions(tmp_path / "nowhere.parquet", trie)
    (tmp_path / "text").write_text("user_id,sid\n")
    with pytest.raises(InputError, match="text: cannot be read"):
        read_interactions(tmp_path / "text", trie)


def request_before(log: Interactions, event: int) -> RequestFeatures:
    begin = int(log.offsets[log.event_user[event]])
    clicks = EventSequence(
        sids=log.sids[begin:event].reshape(-1).tolist(),
        timestamps_ms=log.times_ms[begin:event].tolist(),
        side={"action": log.side["action"][begin:event].tolist()},
    )
    return RequestFeatures(sequences={"clicks": clicks} if event > begin else {})


def test_a_batch_is_what_its_users_would_have_sent_just_before(training_log: Interactions) -> None:
    log = training_log
    first, short, long = log.offsets[3], log.offsets[3] + 2, log.offsets[5] - 1
    events = np.array([long, first, 0, short, long - 1, len(log.leaves) - 1])
    batches = HistoryBatches(log, history_input(SPEC))
    (ours,) = batches.inputs(events).sequences
    requests = [request_before(log, int(event)) for event in events]
    (theirs,) = encode_inputs(SPEC, requests).sequences
    for name in ("offsets", "sids", "age_buckets"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert torch.equal(ours.side[0], theirs.side[0])
    assert ours.offsets.diff().tolist() == [5, 0, 0, 2, 5, 5]
    assert batches.targets(events).tolist() == log.sids[events].tolist()


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
