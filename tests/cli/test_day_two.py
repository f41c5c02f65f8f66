"""`grace build --data` every hour: the codebook gives new ads SIDs, or the build names them."""

import json
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.index.storage import load_snapshot
from support.command import run_grace
from support.in_process import invoke_grace
from support.raw_tables import write_table

pytestmark = pytest.mark.subprocess

ADS, DIMS = 111, 7
TABLES = """
ads:
  files: [../raw/ads.csv]
  columns: {ad_id: sku}
sids: codebook
embeddings:
  files: [../raw/items.parquet]
  columns: {item_id: sku, vector: embedding}
id_map: ids.parquet
"""
VECTORS = np.random.default_rng(5).standard_normal((ADS + 9, DIMS)).astype(np.float32)


def write_ads(shop: Path, ids: list[Any]) -> None:
    rows = [{"sku": ad, "country": "US"} for ad in ids]
    write_table(shop.parent / "raw" / "ads.csv", rows)


def write_items(shop: Path, ids: list[Any], vectors: list[Any]) -> None:
    columns = {"sku": ids, "embedding": pa.array(vectors, pa.list_(pa.float32()))}
    pq.write_table(pa.table(columns), shop.parent / "raw" / "items.parquet")


def sids_of(shop: Path) -> dict[Any, list[int]]:
    table = pq.read_table(shop / "codebook" / "sids.parquet").to_pydict()
    return dict(zip(table["item_id"], table["sid"], strict=True))


def named(count: int) -> list[str]:
    return [f"SKU-{at}" for at in range(count)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shop = tmp_path_factory.mktemp("kept") / "shop"
    shop.mkdir()
    (shop / "tables.yaml").write_text(TABLES)
    (shop / "targeting.yaml").write_text("attributes: {country: {values: [US]}}\n")
    write_ads(shop, named(ADS))
    write_items(shop, named(ADS), [*VECTORS[:ADS]])
    done = invoke_grace("sids", "--data", shop, "--levels", "3", "--codes", "8")
    assert done.exit_code == 0, done.stderr
    assert len(sids_of(shop)) == ADS
    return shop


@pytest.fixture
def shop(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept.parent, tmp_path / "data")) / "shop"


def build(shop: Path, *options: str) -> tuple[int, str, str]:
    done = invoke_grace("build", "--data", shop, "--root", shop / "snapshots", *options)
    return done.exit_code, done.stdout, done.stderr


def test_new_ads_get_sids_without_torch_and_known_ads_keep_theirs(
    shop: Path, tmp_path: Path
) -> None:
    before = sids_of(shop)
    vectors = [*VECTORS]
    vectors[5] = -vectors[5]  # a known ad's new vector
    vectors[ADS] = vectors[8]
    vectors[-1] = None  # not an ad
    write_ads(shop, named(ADS + 3)[1:])  # one is gone, three are new
    write_items(shop, named(len(VECTORS)), vectors)
    absent = tmp_path / "absent" / "torch" / "__init__.py"
    absent.parent.mkdir(parents=True)
    absent.write_text("raise ModuleNotFoundError('as if absent', name='torch')")
    path = os.pathsep.join([str(tmp_path / "absent"), os.environ.get("PYTHONPATH", "")])
    inputs = ("--data", shop, "--root", shop / "snapshots")
    done = run_grace("build", *inputs, env={"PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (0, "")
    assert "new sids: 3\n" in done.stdout
    after = sids_of(shop)
    assert list(after) == [*before, *named(ADS + 3)[ADS:]]
    assert {name: after[name] for name in before} == before
    assert after[f"SKU-{ADS}"] == before["SKU-8"]
    assert load_snapshot(shop / "snapshots").ads.num_ads == ADS + 2
    table = (shop / "codebook" / "sids.parquet").read_bytes()
    code, out, _ = build(shop, "--shards", "2")
    assert (code, "new sids: 0\n" in out) == (0, True)
    assert (shop / "codebook" / "sids.parquet").read_bytes() == table


@pytest.mark.parametrize("alike", [True, False])
def test_a_build_reports_many_new_ads_that_the_codebook_does_not_capture(
    shop: Path, alike: bool
) -> None:
    drawn = np.random.default_rng(6).standard_normal((1000, DIMS)).astype(np.float32)
    new = np.resize(VECTORS[:ADS], drawn.shape) if alike else drawn
    write_ads(shop, named(ADS + len(new)))
    write_items(shop, named(ADS + len(new)), [*VECTORS[:ADS], *new])
    code, _, err = build(shop)
    assert code == 0
    assert ("codebook: its error on 1,000 new ads is " in err) == (not alike), err


def without_section(shop: Path) -> None:
    text = (shop / "tables.yaml").read_text()
    (shop / "tables.yaml").write_text(re.sub(r"embeddings:(\n  .*)*\n", "", text))


def without_codebook(shop: Path) -> None:
    (shop / "codebook" / "codebook.yaml").unlink()


def new_vectors(*vectors: Any) -> Callable[[Path], None]:
    """Give the new ad these, before the vectors of all others."""

    def change(shop: Path) -> None:
        ids = [f"SKU-{ADS}"] * len(vectors) + named(ADS)
        write_items(shop, ids, [*vectors, *VECTORS[:ADS]])

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Path.exists, ", and no usable vector in {0}/../raw/items.parquet; add one there"),
        (new_vectors(None), ", and no usable vector in {0}/../raw/items.parquet; add one there"),
        (new_vectors([-np.inf, *[1.0] * (DIMS - 1)]), ", and no usable vector in"),
        (new_vectors([1.0] * (DIMS - 1)), ", and no usable vector in"),
        (new_vectors([]), ", and no usable vector in"),
        (new_vectors(VECTORS[5], VECTORS[5]), ", and no usable vector in"),
        (without_section, "; name the table of vectors as `embeddings` in tables.yaml, and build"),
        (without_codebook, "; add it there"),
    ],
)
def test_an_ad_that_cannot_get_a_sid_is_named_with_the_remedy(
    shop: Path, change: Callable[[Path], None], reason: str
) -> None:
    write_ads(shop, named(ADS + 1))
    change(shop)
    code, _, err = build(shop)
    reason = f"sids.parquet{reason.format(shop)}"
    assert code == 2
    assert f"ad 'SKU-{ADS}': sid 'SKU-{ADS}': the ad has no SID in {shop}/codebook/{reason}" in err
    code, out, _ = build(shop, "--shards", "2", "--max-rejects", "1")
    assert (code, "rejects: 1\nreject file: " in out) == (0, True)
    listed = json.loads((shop / "snapshots" / f"{1:020d}.rejects.jsonl").read_text())
    assert listed["reason"].startswith(f"the ad has no SID in {shop}/codebook/{reason}")


@pytest.mark.parametrize("shards", [(), ("--shards", "2")], ids=["whole", "shards"])
def test_integer_ids_and_vectors_in_the_ads_table_do_as_well(
    shop: Path, shards: tuple[str, ...]
) -> None:
    def write(count: int) -> None:
        vectors = pa.array([*VECTORS[:count]], pa.list_(pa.float32()))
        columns = {"sku": [*range(7, 7 + count)], "country": ["US"] * count, "embedding": vectors}
        pq.write_table(pa.table(columns), shop.parent / "raw" / "ads.parquet")

    tables = TABLES.replace("ads.csv", "ads.parquet").replace("items.parquet", "ads.parquet")
    tables = tables.replace("sids:", "  ignore: [embedding]\nsids:")
    (shop / "tables.yaml").write_text(tables.replace("id_map: ids.parquet\n", ""))
    write(ADS)
    (shop / "codebook" / ".sids.parquet.4711").touch()  # of a build that was killed
    learn = ("--levels", "2", "--codes", "8", "--force")
    assert invoke_grace("sids", "--data", shop, *learn).exit_code == 0
    write(ADS + 5)
    code, out, err = build(shop, *shards)
    assert (code, "new sids: 5\n" in out, err) == (0, True, "")
    assert list(sids_of(shop)) == [*range(7, 7 + ADS + 5)]
    assert load_snapshot(shop / "snapshots").ads.num_ads == ADS + 5


def test_simultaneous_builds_give_a_new_ad_one_sid(shop: Path) -> None:
    write_ads(shop, named(len(VECTORS)))
    write_items(shop, named(len(VECTORS)), [*VECTORS])
    inputs = ("build", "--data", shop, "--root", shop / "snapshots", "--json")
    with ThreadPoolExecutor(2) as both:
        done = list(both.map(lambda _: run_grace(*inputs), range(2)))
    assert [each.returncode for each in done] == [0, 0], done
    given = sorted(json.loads(each.stdout)["new_sids"] for each in done)
    assert given == [0, len(VECTORS) - ADS]
    assert pq.read_metadata(shop / "codebook" / "sids.parquet").num_rows == len(VECTORS)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ((), "no table of vectors: give --data FOLDER, --embeddings TABLE or both"),
        (
            ("--data", "{shop}", "--out", "{shop}/new", "--codes", "8,200000,8,8"),
            "vocab sizes (8, 200000, 8, 8): each must be 1 to 65536",
        ),
        (("--data", "{shop}/bare"), "bare/tables.yaml: no section `embeddings`"),
    ],
)
def test_grace_sids_says_what_it_cannot_do(
    shop: Path, options: tuple[str, ...], fault: str
) -> None:
    shutil.copytree(shop, shop / "bare", ignore=shutil.ignore_patterns("codebook"))
    without_section(shop / "bare")
    done = invoke_grace("sids", *(each.format(shop=shop) for each in options))
    assert done.exit_code == 2
    assert fault.format(shop=shop) in done.stderr
