"""One attention call between the profiler's marks: what Nsight Compute runs.

python -m bench.gpu.counted_call self "ours distinct" [--tiny]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch

from bench.gpu.attention_inputs import cross_inputs, distinct_table, self_inputs
from bench.gpu.attention_variants import cross_variants, self_variant
from bench.gpu.options import BenchOptions
from bench.gpu.subject import subject_of
from kernels import load_ops

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.counted_call")
    parser.add_argument("kind", choices=("cross", "self"))
    parser.add_argument("variant")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(arguments)
    device = torch.device("cuda")
    call = _call(BenchOptions("attention", device, "", tiny=given.tiny), given.kind, given.variant)
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def _call(options: BenchOptions, kind: str, variant: str) -> Callable[[], object]:
    """On the paper's widest step, t = 3 for self-attention; no row shares its past."""
    subject, ops = subject_of(options), load_ops(options.device)
    beams, dtype, device = subject.fixed.beams[-1], torch.bfloat16, options.device
    if kind == "cross":
        cross = cross_inputs(subject, beams, dtype, device, seed=0)
        return partial(cross_variants(ops, device)[variant], cross)
    last = subject.spec.sid_length - 1
    table = distinct_table(subject.spec, subject.batch * beams, last, device)
    return self_variant(variant, ops, self_inputs(subject.spec, table, dtype))


if __name__ == "__main__":
    main(sys.argv[1:])
