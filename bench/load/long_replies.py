"""A server whose replies hold as many ads as `max_ads` says, or none if it says 1.

    python -m grace.bench.load.long_replies --config FILE

The tiny catalogue has no ten thousand ads for a user. So the last stage, after its real work,
writes replies of that many from an array; all else is the real server.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from grace.configs.serving import load_serving_config
from grace.proto.retrieval_pb2 import RetrieveResponse
from grace.server.life_cycle import serve
from grace.server.messages import AnsweredBatch, GeneratedBatch, Span
from grace.server.stages.stages import STAGES

__all__ = ["main"]

_IDS = np.arange(10_000, dtype=np.int64)
_SCORES = np.linspace(-1, -9, len(_IDS), dtype=np.float32)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m grace.bench.load.long_replies")
    parser.add_argument("--config", type=Path, required=True)
    config = load_serving_config(parser.parse_args(arguments).config)
    return serve(config, replace(STAGES, post=_answer))


def _answer(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
    answered = STAGES.post(batch, spans)
    answers = []
    for answer in answered.answers:
        asked = answer.request.retrieval.max_ads
        ads = 0 if asked == 1 else asked
        head = RetrieveResponse(request_id=answer.request.retrieval.request_id)
        answers.append(replace(answer, reply=head.SerializeToString() + _ads(ads)))
    return replace(answered, answers=tuple(answers))


@lru_cache(maxsize=16)
def _ads(count: int) -> bytes:
    """The fields of this many ads: a message's parts may be written apart."""
    return RetrieveResponse(ad_ids=_IDS[:count], scores=_SCORES[:count]).SerializeToString()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
