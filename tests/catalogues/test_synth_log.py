"""The interaction log: its splits, sessions, tastes and skew."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.catalogues.synth import Catalogue, make_catalogue, preset_spec, write_folder
from grace.catalogues.synth.log_file import FEWEST_EVENTS, MOST_EVENTS, InteractionLog, make_log
from grace.catalogues.synth.schema import ACTION_IDS, NOW_MS
from grace.index.tables.data_folder import LOG_FILE
from support.training import plain_gini


@pytest.fixture(scope="module")
def log(tiny: Catalogue) -> InteractionLog:
    return make_log(tiny)


@pytest.fixture(scope="module")
def table(folder: tuple[Path, object]) -> pa.Table:
    return pq.read_table(folder[0] / LOG_FILE)


def test_the_rows_are_the_log(table: pa.Table, log: InteractionLog, tiny: Catalogue) -> None:
    assert table.schema.names == ["user_id", "sid", "timestamp_ms", "action", "split"]
    assert table.schema.metadata == {
        b"grace.sid_space": b"synth-tiny-3",
        b"grace.vocab_sizes": b"64,64,64,64",
    }
    assert table["sid"].to_pylist() == tiny.tree.sids[log.items].tolist()
    assert table["timestamp_ms"].to_pylist() == log.times_ms.tolist()
    assert table["action"].to_pylist() == log.actions.tolist()
    assert (table["user_id"].to_numpy() == log.event_user + 1).all()


def test_no_user_is_in_both_splits(table: pa.Table) -> None:
    users, split = table["user_id"].to_numpy(), table["split"].to_numpy()
    held_out, training = set(users[split == "test"]), set(users[split == "train"])
    assert held_out & training == set()
    assert len(held_out) == 450
    assert len(training) == 2550


def test_users_have_ten_to_forty_past_events_oldest_first(log: InteractionLog) -> None:
    counts = np.diff(log.offsets)
    assert (counts.min(), counts.max()) == (FEWEST_EVENTS, MOST_EVENTS)
    within = log.event_user[1:] == log.event_user[:-1]
    assert (np.diff(log.times_ms)[within] > 0).all()
    assert log.times_ms.max() < NOW_MS
    assert set(log.actions.tolist()) == set(ACTION_IDS)


def test_steps_lead_to_another_item_near_the_last_one(log: InteractionLog, tiny: Catalogue) -> None:
    within = log.event_user[1:] == log.event_user[:-1]
    before, after = log.items[:-1][within], log.items[1:][within]
    assert (before == after).mean() < 0.01
    topic, line = tiny.tree.sid_topic, tiny.tree.sid_line
    assert (topic[before] == topic[after]).mean() > 0.5
    assert (line[before] == line[after]).mean() > 0.15


@pytest.mark.parametrize("preset", ["tiny", "demo"])
def test_popularity_is_as_skewed_as_the_document_says(preset: str) -> None:
    catalogue = make_catalogue(preset_spec(preset, seed=1))
    counts = np.bincount(make_log(catalogue).items, minlength=catalogue.num_sids)
    top = np.sort(counts)[-catalogue.num_sids // 100 :].sum() / counts.sum()
    assert 0.12 < top < 0.18
    assert 0.60 < plain_gini(counts.tolist()) < 0.70


def test_a_preset_without_a_log_removes_the_one_of_another_catalogue(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).write_text("another catalogue's log")
    small = preset_spec("small", sids=1111)
    assert write_folder(small, tmp_path, force=True).interactions == 0
    assert not (tmp_path / LOG_FILE).exists()
