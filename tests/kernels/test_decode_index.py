"""The part of a snapshot that a device gets, and the snapshots that it refuses at loading."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import ConfigError
from grace.kernels import DecodeIndex
from grace.kernels.decode.tensors import MOST_SETS_ON_GPU
from grace.native.build import ROOT
from support.decode_cases import DecodeCase, branching_case, decode_case
from support.pretended_gpus import pretend_gpus
from support.strategies import random_schema

DEVICES = [("cpu", 9), pytest.param("cuda:0", MOST_SETS_ON_GPU, marks=pytest.mark.gpu)]


def case_of_sets(num_sets: int, mode: MatcherMode = MatcherMode.UNION) -> DecodeCase:
    rng = np.random.default_rng(num_sets)
    return decode_case(branching_case(rng, 33, 1, random_schema(rng, (3,), num_sets)), mode)


def test_more_sets_than_a_gpu_tests_are_refused_when_the_snapshot_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_gpus(monkeypatch)
    names = ", ".join(f"s{i}" for i in range(9))
    with pytest.raises(ConfigError) as raised:
        DecodeIndex.of(case_of_sets(9).snapshot, torch.device("cuda:0"))
    assert str(raised.value) == (
        f"sets: the snapshot's schema has 9, {names}; device cuda:0 tests at most 8 while "
        "decoding: build with fewer or in mode cd, or use device cpu"
    )


@pytest.mark.parametrize(("device", "most"), DEVICES)
def test_a_device_takes_as_many_sets_as_it_tests_and_mode_cd_tests_none(
    device: str, most: int
) -> None:
    place = torch.device(device)
    assert len(DecodeIndex.of(case_of_sets(most).snapshot, place).blooms) == most
    assert DecodeIndex.of(case_of_sets(9, MatcherMode.CD).snapshot, place).blooms == ()


def test_the_limit_is_the_same_in_the_kernels() -> None:
    header = (ROOT / "include" / "grace" / "admission.h").read_text()
    assert f"constexpr int kMostSets = {MOST_SETS_ON_GPU};" in header


@pytest.mark.parametrize("mode", list(MatcherMode), ids=lambda mode: mode.value)
def test_without_matchers_it_is_the_index_of_mode_cd(mode: MatcherMode) -> None:
    made, plain = case_of_sets(2, mode), case_of_sets(2, MatcherMode.CD)
    assert (
        replace(
            made.index.without_matchers(),
            node_offsets=plain.index.node_offsets,
            csr_tokens=plain.index.csr_tokens,
        )
        == plain.index
    )
    assert torch.equal(made.index.node_offsets, plain.index.node_offsets)
    assert torch.equal(made.index.csr_tokens, plain.index.csr_tokens)
