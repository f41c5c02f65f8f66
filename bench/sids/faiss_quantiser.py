"""The residual quantiser of faiss, as a process that measures itself.

faiss is no dependency: pip install faiss-cpu. The process reads vectors and writes tokens:

python -m grace.bench.sids.faiss_quantiser VECTORS.npy TOKENS.npy LEVELS BITS BEAM SAMPLE
"""

import json
import resource
import sys
from importlib import import_module
from time import perf_counter

import numpy as np


def main(source: str, target: str, levels: int, bits: int, beam: int, sample: int) -> None:
    """With a beam of 1, each level takes the nearest centre; 5 is the default of faiss."""
    faiss = import_module("faiss")
    vectors = np.load(source)
    begin = perf_counter()
    quantiser = faiss.ResidualQuantizer(vectors.shape[1], levels, bits)
    quantiser.max_beam_size = beam
    rows = np.random.default_rng(1).permutation(len(vectors))[:sample]
    quantiser.train(vectors[rows])
    packed = quantiser.compute_codes(vectors)
    tokens = faiss.unpack_bitstrings(packed, levels, bits)
    seconds = perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    np.save(target, tokens.astype(np.uint16))
    centres = faiss.vector_to_array(quantiser.codebooks).reshape(levels, 1 << bits, -1)
    spread = float(np.square(vectors - vectors.mean(axis=0)).sum())
    errors = []
    residual = vectors
    for level in range(levels):
        residual = residual - centres[level][tokens[:, level].astype(np.int64)]
        errors.append(float(np.square(residual).sum()) / spread)
    print(json.dumps({"errors": errors, "seconds": seconds, "peak_gb": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
