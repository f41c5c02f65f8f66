"""The study on a GPU: its scores and the compiled operations return what those of a CPU do."""

import pytest

from grace.bench.eligibility import study
from grace.bench.gpu.subjects.workload import workload_of
from grace.bench.options import BenchOptions
from grace.bench.result_file import Row

SIDS = 22_222
_PLACE = ("table", "catalogue", "mode", "bucket", "audience", "from_pct")


def rows_on(device: str) -> list[Row]:
    options = BenchOptions("eligibility", device, tiny=True, sids=(SIDS,), commit="abc")
    return list(study.measure(workload_of(options)))


@pytest.mark.gpu
def test_the_study_has_the_same_rows_on_a_gpu_as_on_a_cpu() -> None:
    for own, other in zip(rows_on("cuda:0"), rows_on("cpu"), strict=True):
        assert [own.get(name) for name in _PLACE] == [other.get(name) for name in _PLACE]
        if own["table"] not in ("pass", "selectivity") or own["users"] == 0:
            continue
        # Almost equal scores may decide for another SID.
        assert own["eligible_ads"] == pytest.approx(other["eligible_ads"], rel=0.02)
        assert own["score_mass_pct"] == pytest.approx(other["score_mass_pct"], abs=0.1)
