"""Learned SIDs: their numbers, and the demonstration's catalogue."""

import numpy as np
import pytest

from grace.catalogues.synth import Catalogue, make_catalogue, make_users, preset_spec
from grace.catalogues.synth.learned_tokens import number_duplicates
from grace.catalogues.synth.log_file import make_log
from grace.configs.errors import InputError


def test_more_equal_codes_than_last_tokens_are_refused_with_the_remedy() -> None:
    codes = np.zeros((9, 3), np.int64)
    with pytest.raises(InputError, match=r"9 items have equal learned tokens.*has 8: .*fewer SIDs"):
        number_duplicates(codes, 8)


@pytest.fixture(scope="module")
def demo() -> Catalogue:
    return make_catalogue(preset_spec("demo", seed=3))


def test_clicks_of_requests_follow_the_same_process_as_the_log(demo: Catalogue) -> None:
    """Steps stay within a topic equally often, so a model of the log can continue them."""
    log = make_log(demo)
    within = log.event_user[1:] == log.event_user[:-1]
    topic = demo.tree.sid_topic
    logged = (topic[log.items[:-1]] == topic[log.items[1:]])[within].mean()
    clicks = [user.clicks for user in make_users(demo)]
    pairs = np.concatenate([np.column_stack([each[:-1], each[1:]]) for each in clicks])
    assert (topic[pairs[:, 0]] == topic[pairs[:, 1]]).mean() == pytest.approx(logged, abs=0.05)
    assert (pairs[:, 0] != pairs[:, 1]).mean() > 0.98
