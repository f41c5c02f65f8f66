"""A catalogue's folder: ads, rules, requests and log, as builds, clients and training read them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from grace.catalogues.folder import Written
from grace.catalogues.synth import (
    Catalogue,
    CatalogueSpec,
    make_catalogue,
    make_requests,
    make_users,
    preset_spec,
    write_folder,
    write_raw_folder,
)
from grace.catalogues.synth.campaign_rules import OPEN
from grace.catalogues.synth.files import write_ads
from grace.catalogues.synth.log_file import make_log
from grace.catalogues.synth.rules import OPEN_CAMPAIGN
from grace.catalogues.synth.spec import DAY_MS, LISTED, NOW_MS, RULE_COLUMNS, SCHEMA
from grace.catalogues.synth.topics import TOPICS
from grace.configs.errors import InputError
from grace.index.builder import BuildSpec, build
from grace.index.tables.data_folder import (
    ADS_FILE,
    LOG_FILE,
    REQUESTS_FILE,
    TARGETING_FILE,
    read_data_folder,
)
from grace.index.targeting.schema import load_schema
from support.in_process import invoke_grace
from support.oracle import NO_RULE, Asked, RawAd, RawUser, Rules, User, eligible

Folder = tuple[Path, Written]
FLIGHT_COLUMNS = ("flight_start", "flight_end")


def test_the_rows_are_the_catalogue_by_ascending_id(
    folder: Folder, tiny: Catalogue, tmp_path: Path
) -> None:
    table = pq.read_table(folder[0] / ADS_FILE)
    assert table.schema.metadata == {
        b"grace.sid_space": b"synth-tiny-3",
        b"grace.vocab_sizes": b"64,64,64,64",
    }
    progress: list[tuple[int, int]] = []
    write_ads(tiny, tmp_path / "ads", lambda *seen: progress.append(seen), rows_per_group=1111)
    assert pq.ParquetFile(tmp_path / "ads").num_row_groups == len(progress) > 2
    assert progress[-1] == (tiny.num_ads, tiny.num_ads)
    assert pq.read_table(tmp_path / "ads").equals(table), "row groups of any size have these rows"
    rows = table.to_pylist()
    assert [row["ad_id"] for row in rows] == sorted(tiny.ad_ids.tolist())
    ad_of = {int(ad_id): ad for ad, ad_id in enumerate(tiny.ad_ids)}
    ad_sids = tiny.ad_sids
    for row in rows:
        ad = ad_of[row["ad_id"]]
        assert row["sid"] == tiny.tree.sids[ad_sids[ad]].tolist()
        assert row["ad_weight"] == tiny.ad_weights[ad]
        rule = {name: row[name] for name in RULE_COLUMNS}
        expected = tiny.campaigns.rule(int(tiny.ad_campaigns[ad]))
        assert {name: values for name, values in rule.items() if values is not None} == expected
        campaign = int(tiny.ad_campaigns[ad])
        flight = [row[name] and 1000 * row[name].timestamp() for name in FLIGHT_COLUMNS]
        assert flight == [None if x == OPEN else x for x in tiny.campaigns.flights[:, campaign]]
        topic = next(each for each in TOPICS if each.name == row["category"])
        assert any(f" {product}, " in row["title"] for product in topic.products)
        assert row["campaign"] == (None if campaign == OPEN_CAMPAIGN else campaign)
    brands = {(row["advertiser"], row["title"].split()[0]) for row in rows}
    assert len(brands) == len({advertiser for advertiser, _ in brands}) > 63
    owners = {(row["campaign"], row["advertiser"]) for row in rows if row["campaign"] is not None}
    assert len(owners) == len({campaign for campaign, _ in owners}) > len(brands)


def test_equal_seeds_write_equal_bytes_and_another_seed_other_ones(
    folder: Folder, tmp_path: Path
) -> None:
    for seed in (3, 4):
        write_folder(preset_spec("tiny", seed=seed), tmp_path, force=True)
        for name in (ADS_FILE, REQUESTS_FILE, LOG_FILE):
            same = (tmp_path / name).read_bytes() == (folder[0] / name).read_bytes()
            assert same == (seed == 3), (name, seed)


def test_files_from_before_are_kept_unless_forced(tmp_path: Path) -> None:
    (tmp_path / ADS_FILE).write_text("mine")
    (tmp_path / "notes.txt").write_text("also mine")
    spec = preset_spec("tiny", sids=111)
    with pytest.raises(InputError, match=r"already holds ads\.parquet; use --force"):
        write_folder(spec, tmp_path)
    assert (tmp_path / ADS_FILE).read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2
    write_folder(spec, tmp_path, force=True)
    assert pq.read_metadata(tmp_path / ADS_FILE).num_rows > 111
    assert (tmp_path / "notes.txt").read_text() == "also mine"


def test_each_user_is_eligible_for_some_ads_and_not_for_others(tiny: Catalogue) -> None:
    """Counted by the definition of eligibility, on every 7th ad, now and ten years later."""
    ads = [
        RawAd(int(tiny.ad_ids[ad]), (0,), rules=_rules(tiny, int(tiny.ad_campaigns[ad])))
        for ad in range(0, tiny.num_ads, 7)
    ]
    shares = []
    for request in make_requests(tiny):
        user = RawUser((name, tuple(each["values"])) for name, each in request["user"].items())
        for years in (0, 10):
            user.asked = Asked(at=NOW_MS + years * 365 * DAY_MS)
            shares.append(sum(eligible(SCHEMA, ad, user) for ad in ads) / len(ads))
    assert min(shares) > 0.02
    assert max(shares) < 0.8
    assert 0.1 < float(np.mean(shares)) < 0.5


def _rules(catalogue: Catalogue, campaign: int) -> Rules:
    lists = {name: frozenset(each) for name, each in catalogue.campaigns.rule(campaign).items()}
    names = [each.name for each in LISTED]
    flight = catalogue.campaigns.flights[:, campaign].tolist()
    return {
        **{name: (lists.get(name), lists.get(f"{name}_exclude")) for name in names},
        "flight": tuple(None if time == OPEN else time for time in flight),
    }


SPECS = {
    "tiny": replace(preset_spec("tiny", sids=1_111, seed=5), log_users=333),
    "districts": replace(preset_spec("small", sids=55_555, seed=7), log_users=222),
    "few SIDs": replace(preset_spec("tiny", sids=64, seed=9), log_users=111),
    "learned": replace(preset_spec("demo", seed=1), log_users=333),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_everyone_in_a_log_met_only_ads_that_they_may_see(
    spec: CatalogueSpec, tmp_path: Path
) -> None:
    """At some time, the user may see an ad of each SID, and in the raw log the clicked ad."""
    for made in (spec, replace(spec, learned_tokens=False)):
        catalogue = make_catalogue(made)
        log, offsets = make_log(catalogue), catalogue.ad_offsets
        users = [user.attributes for user in log.users]
        met = {(int(user), int(item)) for user, item in zip(log.event_user, log.items, strict=True)}
        asking = [user for user in make_users(catalogue) if len(user.clicks) >= 3]
        assert len(asking) >= 50
        met |= {(len(users) + at, int(x)) for at, y in enumerate(asking) for x in y.clicks}
        users += [user.attributes for user in asking]
        for user, item in met:
            below = range(offsets[item], offsets[item + 1])
            assert any(_may_see(catalogue, users[user], ad) for ad in below), (user, item)
    write_raw_folder(spec, tmp_path)
    ad_of = {f"SKU-{ad_id}": ad for ad, ad_id in enumerate(catalogue.ad_ids)}
    clicks = csv.read_csv(tmp_path / "clicks.csv").select(["uid", "item"]).to_pylist()
    assert len(clicks) == len(log.items)
    for user, sku in {(click["uid"], click["item"]) for click in clicks}:
        assert _may_see(catalogue, users[int(user.removeprefix("user-")) - 1], ad_of[sku])


def _may_see(catalogue: Catalogue, user: User, ad: int) -> bool:
    rules = {
        **_rules(catalogue, int(catalogue.ad_campaigns[ad])),
        "hour": NO_RULE,
        "flight": NO_RULE,
    }
    return eligible(SCHEMA, RawAd(ad, (0,), rules=rules), user)


def test_a_build_accepts_every_ad_and_all_of_its_rules(
    folder: Folder, tiny: Catalogue, tmp_path: Path
) -> None:
    out, written = folder
    assert load_schema(out / TARGETING_FILE) == SCHEMA
    spec = BuildSpec(read_data_folder(out), tmp_path, threads=2)
    report = build(spec, lambda *_: None)
    assert (report.sid_space, report.sids) == ("synth-tiny-3", tiny.num_sids)
    assert (report.ads, report.rejects) == (tiny.num_ads, 0)
    assert report.ignored_columns == ("title",)
    assert (written.sids, written.ads, written.requests) == (report.sids, report.ads, 64)
    assert written.sid_space == report.sid_space
    assert written.interactions == pq.read_metadata(out / LOG_FILE).num_rows
    assert written.bytes == sum(file.stat().st_size for file in out.iterdir())


def test_a_preset_without_a_log_removes_the_one_of_another_catalogue(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).write_text("another catalogue's log")
    small = preset_spec("small", sids=1111)
    assert write_folder(small, tmp_path, force=True).interactions == 0
    assert not (tmp_path / LOG_FILE).exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--preset", "huge"], "--preset huge is unknown; known: tiny, small, demo"),
        (["--seed", "-1"], "--seed -1 is negative"),
    ],
)
def test_a_wrong_option_is_one_line_with_the_remedy(
    tmp_path: Path, arguments: list[str], named: str
) -> None:
    done = invoke_grace("synth", "--out", tmp_path / "out", *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {named}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
