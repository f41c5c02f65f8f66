"""The warm-up: which requests run before readiness, and what refuses the start."""

from dataclasses import replace
from pathlib import Path

import pytest

from grace.configs.errors import ConfigError, InputError
from grace.configs.serving import LimitsConfig
from grace.server.engine.serving_pair import ServingPair
from grace.server.messages import FeatureBatch, GeneratedBatch, InputBatch, RequestBatch, Span
from grace.server.stages.stages import STAGES
from grace.server.stages.warm_up import warm_up, warm_up_requests
from support.poisoned_model import poisoned_checkpoint, poisoned_request
from support.serving_files import ServingFiles
from support.stage_cases import GENERATION, load_cpu_pair, retrieval_of

LIMITS = LimitsConfig()


def test_every_profile_and_bucket_runs_and_is_observed_once_when_it_is_warm(
    pair: ServingPair, serving_files: ServingFiles
) -> None:
    ran: list[tuple[str, int]] = []
    asked: set[str] = set()
    observed: list[tuple[str, int]] = []

    def note(batch: RequestBatch) -> InputBatch:
        assert len(batch.requests) == batch.bucket
        ran.append((batch.profile_name, batch.bucket))
        asked.update(each.retrieval.request_id for each in batch.requests)
        return STAGES.input(batch)

    def observe(profile: str, bucket: int, spans: tuple[Span, ...]) -> None:
        assert ran.count((profile, bucket)) > 1, "the first run pays for what is slow once"
        assert [span.stage for span in spans] == ["input", "features", "generate", "post"]
        ends = [time for span in spans for time in (span.begin, span.end)]
        assert ends == sorted(ends)
        observed.append((profile, bucket))

    requests = [retrieval_of(request) for request in serving_files.requests[:7]]
    warm_up(replace(STAGES, input=note), pair, GENERATION, requests, observe)
    every = [(name, bucket) for name in GENERATION.profiles for bucket in GENERATION.batch_buckets]
    assert observed == every
    assert set(ran) == set(every)
    assert asked == {request.request_id for request in requests}


def test_without_a_file_one_empty_request_is_enough(pair: ServingPair) -> None:
    requests = warm_up_requests(None, LIMITS, GENERATION)
    assert [request.message for request in requests] == [b""]
    observed: list[int] = []
    small = replace(GENERATION, max_batch=3)
    warm_up(STAGES, pair, small, requests, lambda name, bucket, spans: observed.append(bucket))
    assert observed == [1, 2, 3] * len(GENERATION.profiles)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", ": holds no request; write one JSON request a line"),
        (b'{"request_id": "a"}\n{"usr": {}}\n', ": line 2: not a request: "),
        (b'{"profile": "wide"}\n', ": line 1: profile: 'wide' is not a profile here; known: "),
        (b"\xff\xfe", ": not UTF-8 text; write one JSON request a line"),
    ],
    ids=["empty", "unknown-key", "invalid", "no-text"],
)
def test_a_file_that_cannot_be_used_is_refused_by_line(
    tmp_path: Path, text: bytes, fault: str
) -> None:
    path = tmp_path / "warm.jsonl"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        warm_up_requests(path, LIMITS, GENERATION)
    assert str(caught.value).startswith(f"{path}{fault}")
    assert "\n" not in str(caught.value)


def refuse(pair: ServingPair, request: dict[str, object]) -> str:
    observed: list[str] = []
    requests = [retrieval_of({**request, "request_id": "r7"})]
    with pytest.raises(ConfigError) as caught:
        warm_up(STAGES, pair, GENERATION, requests, lambda name, *rest: observed.append(name))
    assert observed == []
    return str(caught.value)


def test_a_request_that_the_server_would_refuse_ends_the_start(
    pair: ServingPair, serving_files: ServingFiles, tmp_path: Path
) -> None:
    assert refuse(pair, {"sid_space": "another"}).startswith(
        "warm_up: request 'r7': sid_space: the sequences are in 'another', but "
    )
    assert refuse(pair, {"features": {"dense": {"hour": {"values": [1, 2]}}}}).startswith(
        "warm_up: request 'r7': features.dense.hour.values: 2 values, the model takes 1; "
    )
    poisoned = load_cpu_pair(serving_files.snapshots, poisoned_checkpoint(tmp_path))
    assert refuse(poisoned, poisoned_request({})).startswith(
        "warm_up: request 'r7': the model's numbers for it are not finite; "
    )


def test_a_profile_that_does_not_fit_into_memory_ends_the_start_by_name(pair: ServingPair) -> None:
    def starved(batch: FeatureBatch) -> GeneratedBatch:
        raise RuntimeError(f"can't allocate memory: {batch.input.batch.bucket} TiB\nmore")

    stages = replace(STAGES, generate=starved)
    with pytest.raises(ConfigError) as caught:
        warm_up(stages, pair, GENERATION, [retrieval_of({})], lambda *observed: None)
    assert str(caught.value) == (
        "generation.profiles.full: a batch of 1 cannot be computed here: can't allocate memory: "
        "1 TiB; give smaller beams or a smaller max_batch"
    )


def test_a_line_ends_where_json_says_and_not_at_other_marks(tmp_path: Path) -> None:
    ends = "a\u2028b\x85c"
    path = tmp_path / "marks.jsonl"
    path.write_text(f'{{"request_id": "{ends}"}}\r\n\n{{"request_id": "2"}}\n', encoding="utf-8")
    requests = warm_up_requests(path, LIMITS, GENERATION)
    assert [request.request_id for request in requests] == [ends, "2"]
