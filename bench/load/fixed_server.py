"""`grace serve` with an engine whose batches of any size take one fixed time.

    python -m grace.bench.load.fixed_server --config FILE --batch-ms 80

So an overload is a known multiple of the capacity, on a machine of any speed. Like a GPU, the
engine needs no CPU while it works: `generate` computes each kind of batch once, in warm-up, and
then sleeps and returns the same SIDs. Everything else is the service: real gRPC, features, exact
matching, replies.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from grace.bench.load.options import positive
from grace.configs.serving import load_serving_config
from grace.server.life_cycle import serve
from grace.server.messages import FeatureBatch, GeneratedBatch
from grace.server.stages.stages import STAGES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--batch-ms", type=positive, required=True)
    given = parser.parse_args()

    known: dict[tuple[str, int], GeneratedBatch] = {}

    def generate(batch: FeatureBatch) -> GeneratedBatch:
        end = time.perf_counter() + given.batch_ms / 1000
        kind = batch.input.batch.profile_name, batch.input.batch.bucket
        if kind not in known:
            known[kind] = STAGES.generate(batch)
        time.sleep(max(0.0, end - time.perf_counter()))
        return replace(known[kind], input=batch.input)

    return serve(load_serving_config(given.config), replace(STAGES, generate=generate))


if __name__ == "__main__":
    sys.exit(main())
