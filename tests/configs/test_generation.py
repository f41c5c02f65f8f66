"""Beam profiles, and the bounds that a vocabulary sets them."""

import pytest

from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile, GenerationConfig


def of(*beams: int, num_sids: int) -> GenerationConfig:
    return GenerationConfig(3, {"full": BeamProfile(beams, num_sids)})


def test_a_profile_as_wide_as_its_vocabulary_fits() -> None:
    of(1, 7, 77, num_sids=231).require_vocabulary((7, 11, 3))
    of(1, 5, 50, num_sids=150).require_vocabulary((7, 11, 3))


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        (of(1, 8, 8, num_sids=8), r"beams\[1\]: 8, but the earlier beams have at most 7 contin"),
        (of(1, 5, 56, num_sids=8), r"beams\[2\]: 56, but the earlier beams have at most 55 contin"),
        (of(1, 5, 5, num_sids=16), "num_sids: 16, but the earlier beams have at most 15 contin"),
    ],
)
def test_a_profile_wider_than_the_beams_before_it_can_fill_is_refused(
    config: GenerationConfig, fault: str
) -> None:
    with pytest.raises(ConfigError, match=rf"profiles\.full\.{fault}"):
        config.require_vocabulary((7, 11, 3))


def test_beams_and_batches_beyond_the_bounds_are_refused() -> None:
    of(1, 65_536, num_sids=65_536)
    for beams, num_sids, fault in (
        ((1, 65_537), 1, r"beams\[1\]: must be at most 65536, got 65537"),
        ((1, 1), 65_537, "num_sids: must be at most 65536, got 65537"),
        ((1, 0), 1, r"beams\[1\]: must be at least 1, got 0"),
        ((), 1, r"beams: decoding starts from 1 beam, got \[\]"),
    ):
        with pytest.raises(ConfigError, match=fault):
            of(*beams, num_sids=num_sids)
    with pytest.raises(ConfigError, match="max_batch: must be at most 1024, got 1025"):
        GenerationConfig(1025, of(1, num_sids=1).profiles)


def test_buckets_are_the_powers_of_two_and_the_largest_batch() -> None:
    assert GenerationConfig(11, of(1, num_sids=1).profiles).batch_buckets == (*range(1, 9), 10, 11)
    assert GenerationConfig(1, of(1, num_sids=1).profiles).batch_buckets == (1,)


FULL = BeamProfile((1, 8, 8), 9, degrades_to="reduced")


def test_a_ladder_has_every_smaller_profile_in_its_order() -> None:
    profiles = {"full": FULL, "reduced": BeamProfile((1, 8, 4), 9, "least")}
    config = GenerationConfig(3, {**profiles, "least": BeamProfile((1, 1, 1), 1)})
    assert config.ladders == {"full": ("reduced", "least"), "reduced": ("least",)}


@pytest.mark.parametrize(
    ("smaller", "fault"),
    [
        (BeamProfile((1, 4, 9), 9), r"reduced' has \[1, 4, 9\] beams and 9 SIDs; give at most"),
        (BeamProfile((1, 4, 8), 10), r"reduced' has \[1, 4, 8\] beams and 10 SIDs; give at most"),
        (BeamProfile((1, 4), 9), r"reduced' has \[1, 4\] beams and 9 SIDs; give at most"),
        (BeamProfile((1, 8, 8), 9, "full"), r"full -> reduced -> full is a loop; remove one"),
        (None, r"full\.degrades_to: 'reduced' is not one of the profiles \(full\)"),
    ],
)
def test_a_profile_degrades_to_a_known_smaller_one_and_not_in_a_loop(
    smaller: BeamProfile | None, fault: str
) -> None:
    profiles = {"full": FULL} if smaller is None else {"full": FULL, "reduced": smaller}
    with pytest.raises(ConfigError, match=fault):
        GenerationConfig(3, profiles)
