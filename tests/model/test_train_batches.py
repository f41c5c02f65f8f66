"""Batches for training are what a request with the same history would be encoded to."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grace.configs.errors import ConfigError, InputError
from grace.model.definition.spec import SequenceInput
from grace.model.train.batches import HistoryBatches, history_input
from grace.model.train.interactions import Interactions, read_interactions
from grace.model.train.run import LOG_FILE, catalogue_of
from support.plain_inputs import EventSequence, RequestFeatures, encode_inputs
from support.specs import INTERFORMER
from support.training import write_small_data

SPEC = replace(
    INTERFORMER,
    vocab_sizes=(64, 8, 8, 8),
    inputs={"clicks": SequenceInput(max_length=5, side={"action": 8})},
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Interactions:
    folder = tmp_path_factory.mktemp("training")
    write_small_data(folder)
    return read_interactions(folder / LOG_FILE, catalogue_of(folder).trie, ("action",))


def request_before(log: Interactions, event: int) -> RequestFeatures:
    begin = int(log.offsets[log.event_user[event]])
    clicks = EventSequence(
        sids=log.sids[begin:event].reshape(-1).tolist(),
        timestamps_ms=log.times_ms[begin:event].tolist(),
        side={"action": log.side["action"][begin:event].tolist()},
    )
    return RequestFeatures(sequences={"clicks": clicks} if event > begin else {})


def test_a_batch_is_what_its_users_would_have_sent_just_before(log: Interactions) -> None:
    first, short, long = log.offsets[3], log.offsets[3] + 2, log.offsets[5] - 1
    events = np.array([long, first, 0, short, long - 1, len(log.leaves) - 1])
    batches = HistoryBatches(log, history_input(SPEC))
    (ours,) = batches.inputs(events).sequences
    requests = [request_before(log, int(event)) for event in events]
    (theirs,) = encode_inputs(SPEC, requests).inputs.sequences
    for name in ("offsets", "sids", "age_buckets"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert torch.equal(ours.side[0], theirs.side[0])
    assert ours.offsets.diff().tolist() == [5, 0, 0, 2, 5, 5]
    assert batches.targets(events).tolist() == log.sids[events].tolist()


def test_ids_beyond_the_declared_side_input_are_refused(log: Interactions) -> None:
    history = replace(history_input(SPEC), side={"action": 4})
    with pytest.raises(
        InputError, match=r"column 'action' has ids 1 to 4, but .* declare 5 or more"
    ):
        HistoryBatches(log, history)


def test_a_model_of_other_inputs_cannot_be_trained_on_a_log() -> None:
    with pytest.raises(ConfigError, match=r"model\.inputs\.hour: an interaction log has one"):
        history_input(INTERFORMER)
    clicks = {"clicks": SequenceInput(5, {}), "views": SequenceInput(5, {})}
    two = replace(INTERFORMER, inputs={**clicks})
    with pytest.raises(ConfigError, match=r"model\.inputs\.views"):
        history_input(two)
    assert history_input(SPEC).max_length == 5
