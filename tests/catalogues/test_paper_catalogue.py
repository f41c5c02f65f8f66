"""The `paper` catalogue: its shape, equal snapshots from files and arrays, and its generator."""

from pathlib import Path

import numpy as np
import pytest

from grace.catalogues.folder import targeting_yaml
from grace.catalogues.paper.catalogue import make_paper_catalogue
from grace.catalogues.paper.files import write_ads
from grace.catalogues.paper.snapshots import paper_snapshot
from grace.catalogues.paper.spec import PaperSpec
from grace.configs.eligibility import CD
from grace.configs.errors import InputError
from grace.index.builder import BuildSpec, build
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import read_data_folder
from grace.index.targeting.schema import load_schema
from support.arrays import assert_same_arrays
from support.builds import silent


def test_every_size_keeps_the_papers_fan_outs() -> None:
    assert PaperSpec().level_counts[::3] == (512, 30_000_000)
    assert PaperSpec().level_counts[1] * 56 == pytest.approx(11e6, rel=0.02)  # as in its table
    for sids in (1_000, 7_777, 100_003, 3_000_001, 30_000_000):
        first, second, third, leaves = PaperSpec(sids).level_counts
        assert leaves == sids
        assert third / second == pytest.approx(56.3, rel=0.07)
        assert sids / third == pytest.approx(2.71, rel=0.01)
        assert 1 <= first <= second


def test_ads_per_sid_have_the_papers_percentiles_and_a_heavy_tail() -> None:
    ads = np.diff(make_paper_catalogue(PaperSpec(50_001, seed=3), threads=1).tree.ads)
    assert np.percentile(ads, (50, 90, 99), method="inverted_cdf").tolist() == [1, 2, 11]
    assert 1.5 < ads.mean() < 1.9
    assert ads.max() > 300


def test_draws_depend_on_no_chunk_or_thread_and_ids_are_unique() -> None:
    catalogue = make_paper_catalogue(PaperSpec(100_003, seed=3), threads=2)
    again = make_paper_catalogue(catalogue.spec, threads=1)
    np.testing.assert_array_equal(again.tree.ads, catalogue.tree.ads)
    whole = catalogue.rows(np.arange(catalogue.num_ads))
    assert len(np.unique(whole.ids)) == catalogue.num_ads
    assert whole.ids.min() >= 0
    odd = again.rows(np.arange(7, catalogue.num_ads, 111))
    for name in ("ids", "tokens", "weights", "rules"):
        np.testing.assert_array_equal(getattr(odd, name), getattr(whole, name)[7::111])


def test_files_and_arrays_make_the_same_snapshot(tmp_path: Path) -> None:
    catalogue = make_paper_catalogue(PaperSpec(7_777, seed=5), threads=2)
    (tmp_path / "targeting.yaml").write_text(targeting_yaml(catalogue.schema))
    write_ads(catalogue, tmp_path / "ads.parquet", 2, silent, rows_per_group=1_111)
    data = read_data_folder(tmp_path)
    assert load_schema(data.targeting) == catalogue.schema
    assert (catalogue.schema.bitmask_bits, catalogue.schema.words) == (448, 7)
    spec = BuildSpec(data, tmp_path / "root", threads=2)
    built = load_snapshot(build(spec, silent).path, eligibility=CD)
    direct = paper_snapshot(catalogue, 2)
    assert built.facts.sid_space == direct.facts.sid_space
    assert_same_arrays(direct, built)


@pytest.mark.parametrize(("sids", "seed"), [(999, 1), (10**9, 1), (1_000, -1)])
def test_a_size_or_seed_out_of_range_is_refused(sids: int, seed: int) -> None:
    with pytest.raises(InputError, match=r"^--s"):
        PaperSpec(sids, seed)
