"""The fast loop in precision fp8: nearly the same SIDs, and no request changes another."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import ConfigError, DeviceError
from grace.configs.serving import Fp8Product
from grace.kernels import REFERENCE, load_ops, require_fp8
from grace.model.definition.beam_search import Generated
from grace.model.definition.inputs import UserContext
from support.fast_cases import (
    ALL_STEPS,
    WIDE_DECODERS,
    FastCase,
    fast_case,
    on,
    search_fast,
    search_plainly,
)
from support.op_cases import mapped
from support.pretended_gpus import pretend_gpus

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ALL: tuple[Fp8Product, ...] = get_args(Fp8Product)
WIDE = tuple(WIDE_DECODERS)


def case_on(device: str, name: str = "L=3-wide", seed: int = 2, requests: int = 5) -> FastCase:
    case = fast_case(name, seed, MatcherMode.CD, requests=requests, beams=24, ads=700)
    return on(case, torch.device(device))


def searched(
    case: FastCase, memo_bytes: int = ALL_STEPS, kept: tuple[Fp8Product, ...] = ()
) -> Generated:
    ops = load_ops(case.context.states.device)
    found: Generated = mapped(search_fast(case, ops, memo_bytes, "fp8", kept), torch.Tensor.cpu)
    return found


def share(got: Generated, expected: Generated) -> float:
    same = [
        len({*a} & {*b}) / len({*b})
        for a, b in zip(got.leaves.tolist(), expected.leaves.tolist(), strict=True)
    ]
    return sum(same) / len(same)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("memo_bytes", [0, ALL_STEPS], ids=["no-memo", "memo"])
def test_it_finds_most_of_the_plain_loops_sids(name: str, memo_bytes: int, device: str) -> None:
    case = case_on(device, name)
    got = searched(case, memo_bytes)
    assert not got.corrupt.any()
    assert share(got, search_plainly(case, REFERENCE)) > 0.85


@pytest.mark.parametrize("device", DEVICES)
def test_with_one_rounded_product_it_finds_nearly_all_sids(device: str) -> None:
    case = case_on(device)
    found = searched(case, kept=tuple(each for each in ALL if each != "cross_q"))
    assert share(found, search_plainly(case, REFERENCE)) > 0.95


@pytest.mark.parametrize(
    ("name", "kept"), [("L=3-wide", ALL), ("L=3-wide-gated", ALL[:4])], ids=["relu", "gated"]
)
def test_a_list_that_leaves_nothing_in_fp8_is_refused(
    name: str, kept: tuple[Fp8Product, ...]
) -> None:
    with pytest.raises(ConfigError) as refused:
        searched(case_on("cpu", name), kept=kept)
    fault = f"fp8_keep: {', '.join(kept)}: leaves no product of this decoder in fp8"
    assert fault in str(refused.value)


@pytest.mark.parametrize("kept", [(each,) for each in ALL], ids=ALL)
def test_any_product_may_be_kept(kept: tuple[Fp8Product, ...]) -> None:
    case = case_on("cpu")
    got = searched(case, kept=kept)
    assert share(got, search_plainly(case, REFERENCE)) > 0.85
    assert not torch.equal(got.scores, searched(case).scores)


def scaled(case: FastCase, **by: float) -> FastCase:
    """Multiply the decoder's parameters whose names end so."""
    with torch.no_grad():
        for name, parameter in case.decoder.named_parameters():
            parameter.mul_(by.get(name.rpartition(".")[2], 1.0))
    return case


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "by",
    [
        pytest.param({"start": 0.0}, id="a start of zeros"),
        pytest.param({"embed": 0.01}, id="tokens that are small next to the first addition"),
        pytest.param({"ffn_in": 1e3, "ffn_out": 1e-3}, id="large hidden numbers"),
        pytest.param({"cross_v": 1e3, "cross_out": 1e-3}, id="large values of the context"),
        pytest.param({"cross_v": 1e-4, "cross_out": 1e4}, id="small values of the context"),
    ],
)
def test_the_size_of_no_weight_matters(by: dict[str, float], device: str) -> None:
    shares = []
    for seed in range(2, 6):
        case = scaled(case_on("cpu", seed=seed), **by)
        expected = search_plainly(case, REFERENCE)
        shares.append(share(searched(on(case, torch.device(device)), memo_bytes=0), expected))
    assert sum(shares) / len(shares) > 0.85, shares


@pytest.mark.parametrize("device", DEVICES)
def test_a_request_gives_the_same_bits_with_any_neighbours(device: str) -> None:
    """A neighbour may have a context that is a thousand times larger, or no numbers at all."""
    torch.set_num_threads(2)
    case = case_on(device, requests=3)
    alone = searched(case)
    states, mask = case.context.states, case.context.mask
    for factor in (1e3, torch.nan, torch.inf):
        other = states.clone()
        other[1] *= factor
        got = searched(replace(case, context=UserContext(other, mask)))
        for request in (0, 2):
            assert torch.equal(got.leaves[request], alone.leaves[request])
            assert torch.equal(got.scores[request], alone.scores[request])
        assert got.corrupt.tolist() == [False, factor != 1e3, False]


@pytest.mark.gpu
@pytest.mark.parametrize("name", WIDE)
def test_a_gpu_finds_the_sids_of_its_reference(name: str) -> None:
    """The order of a sum decides how e4m3 rounds a number half-way between two, which exchanges a
    few SIDs. One case has a share of 0.95 to 1, so the test takes the mean of eight."""
    shares = []
    for seed in range(2, 10):
        expected = searched(case_on("cpu", name, seed, requests=9))
        got = searched(case_on("cuda", name, seed, requests=9))
        shares.append(share(got, expected))
    assert sum(shares) / len(shares) > 0.96


def test_a_decoder_of_another_width_is_refused_with_its_size() -> None:
    with pytest.raises(ConfigError) as refused:
        searched(fast_case("L=4-unequal", 1))
    assert str(refused.value) == (
        "precision: fp8 needs a decoder whose d_model is a multiple of 128, the checkpoint's is "
        "20; use bf16"
    )


def test_a_gpu_without_the_instructions_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_gpus(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA L4")
    with pytest.raises(DeviceError) as refused:
        require_fp8(torch.device("cuda", 0))
    assert str(refused.value) == (
        "precision: fp8 needs a GPU of compute capability 9.0 (H100, H200), NVIDIA L4 has 8.9; "
        "use bf16"
    )
