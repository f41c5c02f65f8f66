"""The attention calls whose hardware counters are told, one after another: what ncu runs.

    python -m grace.bench.gpu.counted_call [--tiny]

Each comes after a kernel that does nothing but mark it, all between the profiler's marks.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch

from grace.bench.gpu.attention_inputs import cross_inputs, distinct_table, self_inputs
from grace.bench.gpu.attention_variants import cross_variants, self_variant
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.subject import subject_of
from grace.kernels import load_ops

__all__ = ["COUNTED", "MARK", "main"]

COUNTED = (
    ("cross", "ours"),
    ("self", "fa2"),
    ("self", "coalesced"),
    ("self", "fused"),
    ("self", "ours distinct"),
)
"""Self-attention on pasts that share nothing: the paper counted a dense cache."""

MARK = "spin_kernel"
"""In the name of the kernel that torch's `_sleep` launches."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m grace.bench.gpu.counted_call")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(arguments)
    device = torch.device("cuda")
    calls = _calls(BenchOptions("attention", device, "", tiny=given.tiny))
    for call in calls:  # compiled before it is counted
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    for call in calls:
        torch.cuda._sleep(1)  # type: ignore[no-untyped-call]  # noqa: SLF001
        call()
        torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def _calls(options: BenchOptions) -> list[Callable[[], object]]:
    """Those of COUNTED on the paper's widest step, t = 3 for self-attention."""
    subject, ops = subject_of(options), load_ops(options.device)
    beams, dtype, device = subject.fixed.beams[-1], torch.bfloat16, options.device
    cross = cross_inputs(subject, beams, dtype, device, seed=0)
    last = subject.spec.sid_length - 1
    table = distinct_table(subject.spec, subject.batch * beams, last, device)
    own = self_inputs(subject.spec, table, dtype)
    return [
        partial(cross_variants(ops, device)[variant], cross)
        if kind == "cross"
        else self_variant(variant, ops, own)
        for kind, variant in COUNTED
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
