"""Every fast body of every operation agrees with the reference in every case.

On a machine without a GPU, the CUDA kernels run on the host, and Triton's are interpreted. Integers
are equal; floats differ by no more than their type's tolerance.
"""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from grace.kernels import Ops, load_ops
from grace.kernels.encoder.encoder_ops import TRAINING_ENCODER, EncoderOps
from grace.kernels.features.feature_ops import FeatureOps
from grace.native.build import Target
from support import encoder_op_cases, op_cases
from support.command import run_python
from support.encoder_cases import INTERFORMER, T5, interformer_spec, t5_spec

pytest.importorskip("triton", reason="the extra `gpu` exists on Linux alone")

from grace.kernels.ops_cuda import CUDA_DECODER
from grace.model.definition.t5_spec import EncoderDecoderSpec
from support.agreement import (
    DTYPES,
    Call,
    calls_in_turns,
    decoder_calls,
    difference,
    encoder_calls,
    feature_calls,
)
from support.emulated_cuda import EMULATED, PORTABLE, emulated_cuda
from support.encoder_op_cases import encoder_difference

FLOAT32 = (torch.float32,)
TRAINING = [
    call
    for call in encoder_calls(DTYPES, ops=TRAINING_ENCODER)
    if call.name.startswith("attention") and "finite" not in call.name
]
NATIVE = [
    *decoder_calls(load_ops(torch.device("cpu")), ("eligible_nodes", "admit_children"), FLOAT32),
    *(call for call in TRAINING if call.dtype == torch.float32),
]
SELECTIONS = decoder_calls(CUDA_DECODER, ("select_beams",), FLOAT32)
ON_THE_HOST = [
    *decoder_calls(CUDA_DECODER, ("eligible_nodes", "admit_children"), FLOAT32),
    *feature_calls(DTYPES),
]
ON_THE_GPU = [
    *decoder_calls(CUDA_DECODER, op_cases.CASES, DTYPES),
    *calls_in_turns(DTYPES),
    *encoder_calls(DTYPES),
    *feature_calls(DTYPES),
    *(call for call in TRAINING if call.dtype != torch.float32),  # float32 may be TF32 there
]


def name_of(call: Call) -> str:
    return call.name


@pytest.mark.parametrize(
    ("table", "cases"),
    [
        (Ops, op_cases.CASES),
        (EncoderOps, encoder_op_cases.CASES),
        (FeatureOps, encoder_op_cases.FEATURE_CASES),
    ],
)
def test_every_operation_has_cases(table: type, cases: dict[str, tuple[object, ...]]) -> None:
    assert list(cases) == [field.name for field in fields(table)]
    assert all(cases.values())


@pytest.mark.parametrize("call", NATIVE, ids=name_of)
def test_native_bodies_agree(call: Call) -> None:
    assert difference(call, "cpu") is None


@pytest.mark.subprocess  # the first of them runs the compiler
@pytest.mark.parametrize("call", ON_THE_HOST, ids=name_of)
def test_cuda_bodies_agree_on_the_host(call: Call) -> None:
    with emulated_cuda():
        assert difference(call, "cpu") is None


@pytest.mark.subprocess
@pytest.mark.parametrize("target", [EMULATED, PORTABLE], ids=["hopper", "portable"])
@pytest.mark.parametrize("call", SELECTIONS, ids=name_of)
def test_both_codes_of_the_selection_agree_on_the_host(call: Call, target: Target) -> None:
    """GPUs before and after Hopper run the portable code, without clusters."""
    with emulated_cuda(target):
        assert difference(call, "cpu") is None


@pytest.mark.subprocess
def test_interpreted_bodies_and_encoders_agree_with_plain_ones(repository: Path) -> None:
    done = run_python(
        "import runpy; runpy.run_module('support.interpreted_triton', run_name='__main__')",
        env={"TRITON_INTERPRET": "1", "PYTHONPATH": f"{repository}/src:{repository}/tests"},
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    decoder, encoder = outcome["calls"]
    assert decoder > 40
    assert encoder > 30
    assert outcome["different"] == []
    assert set(outcome["encoders"]) == {"interformer", "t5"}
    assert max(outcome["encoders"].values()) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("call", ON_THE_GPU, ids=name_of)
def test_bodies_agree_on_the_gpu(call: Call) -> None:
    load_ops(torch.device("cuda"))
    assert difference(call, "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.08)], ids=str
)
@pytest.mark.parametrize(
    "spec",
    [INTERFORMER, T5, interformer_spec(d_model=64, heads=2), t5_spec(64, 4, 16)],
    ids=["interformer", "t5", "interformer-even", "t5-even"],
)
def test_encoders_on_the_gpu_are_those_of_the_cpu(
    spec: EncoderDecoderSpec, dtype: torch.dtype, tolerance: float
) -> None:
    assert encoder_difference(spec, "cuda", dtype) < tolerance
