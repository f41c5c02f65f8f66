"""The interaction log: its rows, its splits and its skew."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from grace.catalogues.synth import Catalogue, make_catalogue, preset_spec, write_folder
from grace.catalogues.synth.log_file import FEWEST_EVENTS, MOST_EVENTS, make_log
from grace.catalogues.synth.schema import NOW_MS
from grace.index.tables.data_folder import LOG_FILE
from support.training import plain_gini


def test_the_rows_are_the_log(folder: tuple[Path, object], tiny: Catalogue) -> None:
    table, log = pq.read_table(folder[0] / LOG_FILE), make_log(tiny)
    assert table.schema.names == ["user_id", "sid", "timestamp_ms", "action", "split"]
    assert table.schema.metadata == {
        b"grace.sid_space": b"synth-tiny-3",
        b"grace.vocab_sizes": b"64,64,64,64",
    }
    assert table["sid"].to_pylist() == tiny.tree.sids[log.items].tolist()
    assert table["timestamp_ms"].to_pylist() == log.times_ms.tolist()
    assert table["action"].to_pylist() == log.actions.tolist()
    users, split = table["user_id"].to_numpy(), table["split"].to_numpy()
    assert (users == log.event_user + 1).all()
    held_out, training = set(users[split == "test"]), set(users[split == "train"])
    assert held_out & training == set()
    assert (len(held_out), len(training)) == (450, 2550)
    counts, within = np.diff(log.offsets), users[1:] == users[:-1]
    assert (counts.min(), counts.max()) == (FEWEST_EVENTS, MOST_EVENTS)
    assert (np.diff(log.times_ms)[within] > 0).all(), "oldest first"
    assert log.times_ms.max() < NOW_MS
    assert (np.diff(log.items)[within] == 0).mean() < 0.01, "steps lead to another item"


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
