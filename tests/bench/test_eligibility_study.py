"""The study's searches and counts agree with plain definitions.

No test checks a rate: what modes return is in the result files.
"""

from typing import Any

import numpy as np
import pytest
import torch

from grace.bench import result_tables
from grace.bench.eligibility import study
from grace.bench.eligibility.audience import make_audience, with_many_locations
from grace.bench.eligibility.blocking import PASSING, asking, passing_pct, with_flights_and_filters
from grace.bench.eligibility.path_scores import BEAMS, NUM_SIDS, GeneratorKnobs, PathScores
from grace.bench.eligibility.search import best_possible, search
from grace.bench.eligibility.tables import blocked_tables, paper_tables, study_tables
from grace.bench.gpu.subjects.workload import workload_of
from grace.bench.options import BenchOptions
from grace.bench.result_file import Row, read_result
from grace.catalogues.paper.catalogue import PaperCatalogue, make_paper_catalogue
from grace.catalogues.paper.draws import Draws, Stream
from grace.catalogues.paper.population import make_users
from grace.catalogues.paper.snapshots import paper_snapshot
from grace.catalogues.paper.spec import PaperSpec
from grace.configs.eligibility import EXACT, Eligibility, MatcherMode
from grace.index.matchers.derive import derive
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.users.user_rows import UserEncoder, UserRows
from grace.kernels import DecodeIndex, UserTensors, load_ops
from grace.kernels.eligibility.eligible_nodes import eligible_at
from support.bench_workloads import tiny
from support.decode_cases import admitted_entries

CPU = torch.device("cpu")
USERS = 5
PASSRATE, BLOCKED = map(read_result, (result_tables.PASSRATE, result_tables.BLOCKED))


@pytest.fixture(scope="module")
def catalogue() -> PaperCatalogue:
    return with_many_locations(make_paper_catalogue(PaperSpec(7_777, seed=5), threads=2))


@pytest.fixture(scope="module")
def facts(catalogue: PaperCatalogue) -> Snapshot:
    return paper_snapshot(catalogue, 2)


@pytest.fixture(scope="module")
def exact(facts: Snapshot) -> Snapshot:
    return derive(facts, EXACT, threads=2)


@pytest.fixture(scope="module")
def generator(exact: Snapshot) -> PathScores:
    return PathScores(exact, Draws(7), GeneratorKnobs(), CPU)


@pytest.fixture(scope="module")
def users(catalogue: PaperCatalogue, exact: Snapshot) -> UserRows:
    encoder, matcher = UserEncoder(exact.schema, exact.set_values), ExactMatcher(exact, 2)
    people = make_audience(USERS, catalogue, encoder, matcher, exact.trie.num_leaves)
    return encoder.encode([person.attributes for person in people[:USERS]])


@pytest.fixture(scope="module")
def scores(generator: PathScores) -> torch.Tensor:
    return torch.stack([generator.of(user) for user in range(USERS)])


def plain_logits(generator: PathScores, user: int, nodes: Any) -> Any:
    liking = generator.draws.normal(Stream.AFFINITY, nodes | np.int64(user << 32))
    weighted = generator.popularity_weight(user) * generator.log_ads[nodes]
    return (weighted + generator.knobs.liking * liking).astype(np.float64)


def test_a_path_s_score_sums_the_log_softmax_over_siblings(
    exact: Snapshot, generator: PathScores, scores: torch.Tensor
) -> None:
    trie = exact.trie
    for user in range(USERS):
        paths = np.zeros(trie.num_entries + 1)
        logits = plain_logits(generator, user, np.arange(len(paths)))
        for node in range(trie.first_leaf):
            children = list(trie.children(node)[1])
            total = np.log(np.exp(logits[children]).sum())
            paths[children] = paths[node] + logits[children] - total
        np.testing.assert_allclose(scores[user].numpy(), paths, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", [MatcherMode.CD, MatcherMode.UNION, MatcherMode.DYNAMIC])
def test_searches_keep_the_best_admitted_children_of_every_step(
    facts: Snapshot, users: UserRows, scores: torch.Tensor, mode: MatcherMode
) -> None:
    snapshot = derive(facts, Eligibility.of(mode), threads=2)
    index = DecodeIndex.of(snapshot, CPU)
    found = search(scores, UserTensors.of(users, CPU), index, load_ops(CPU).admit_children)
    for user in range(USERS):
        admitted = np.ones(snapshot.trie.num_entries, np.bool_)
        if mode is not MatcherMode.CD:
            admitted = admitted_entries(snapshot, users, user)
        paths, kept = scores[user].numpy(), np.zeros(1, np.int64)
        for keep, nodes in zip((*BEAMS[1:], NUM_SIDS), found.nodes, strict=True):
            below = np.concatenate(
                [np.array(snapshot.trie.children(node)[1]) for node in kept.tolist()]
            )
            below = below[admitted[below - 1]]
            kept = below[np.argsort(-paths[below], kind="stable")[:keep]]
            own = nodes[user].numpy()
            assert set(own[own >= 0].tolist()) == set(kept.tolist())
        np.testing.assert_array_equal(found.scores[user].numpy()[: len(kept)], paths[kept])


def test_the_best_possible_search_is_that_of_an_exact_test_and_unlimited_beams(
    exact: Snapshot, users: UserRows, scores: torch.Tensor
) -> None:
    index = DecodeIndex.of(exact, CPU)
    masks = load_ops(CPU).eligible_nodes(UserTensors.of(users, CPU), index)
    eligible = torch.stack([eligible_at(masks, user, index) for user in range(USERS)])
    leaves, first = exact.trie.num_leaves, exact.trie.first_leaf
    found = best_possible(scores, eligible, first)
    whole = np.arange(leaves, dtype=np.int32)
    for user in range(USERS):
        offsets = np.repeat([0, leaves], [user + 1, USERS - user])
        reply = ExactMatcher(exact, 1).match(users, offsets, whole, np.zeros(leaves, "f4"), 1 << 30)
        with_ads = scores[user].numpy()[first:][np.unique(reply.leaf_positions)]
        expected = -np.sort(-with_ads)[:NUM_SIDS]
        np.testing.assert_array_equal(found.scores[user].numpy()[: len(expected)], expected)
        assert int(torch.isfinite(found.scores[user]).sum()) == len(expected)


@pytest.mark.parametrize("name", PASSING)
def test_flights_and_filters_leave_the_eligible_ads_whose_rows_all_pass(
    facts: Snapshot, catalogue: PaperCatalogue, name: str
) -> None:
    """The share that passes each of three components is the third root of all that pass."""
    snapshot = with_flights_and_filters(facts)
    user, *_ = make_users(1, catalogue.draws, catalogue.spec.knobs)
    whole = np.arange(facts.trie.num_leaves, dtype=np.int32)

    def eligible_of(own: Snapshot, request: Any) -> Any:
        rows = UserEncoder(own.schema, own.set_values).encode([request])
        scores, borders = np.zeros(len(whole), np.float32), np.array([0, len(whole)])
        return ExactMatcher(own, 1).match(rows, borders, whole, scores, 1 << 30).ad_ids

    before, after = eligible_of(facts, user), eligible_of(snapshot, asking(user, name))
    rows = snapshot.rules.rows[snapshot.ads.ad_rule[snapshot.ads.ordinals(before)], -3:]
    assert after.tolist() == before[(rows < 1000 * PASSING[name] ** (1 / 3)).all(axis=1)].tolist()
    assert passing_pct(snapshot, name) == pytest.approx(100 * PASSING[name], abs=2.0)
    assert 0 < len(after) < len(before)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(study.measure(tiny("eligibility", sids=(22_222,))))


def of(rows: list[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if wanted.items() <= row.items()]


def test_the_documents_tables_can_be_made_of_a_run(rows: list[Row]) -> None:
    result = {"machine": "m", "commit": "c", "command": "k", "rows": rows}
    made = study_tables(result) | paper_tables(result)
    assert made.keys() == (study_tables(PASSRATE) | paper_tables(PASSRATE)).keys()
    assert blocked_tables(result).keys() == blocked_tables(BLOCKED).keys()
    for mode in MatcherMode:
        everyone, *buckets = of(rows, table="pass", catalogue="paper", mode=mode.value)
        assert (everyone["users"], sum(row["users"] for row in buckets)) == (7, 7)
        product = everyone["bitmask_pct"] * everyone["bloom_pct"] / 100
        assert everyone["final_pct"] == pytest.approx(product, abs=0.02)
    for exact in of(rows, table="pass", mode="exact"):
        assert not exact["wasted_sids_pct"]
        assert exact["useful_beams"] == exact["live_beams"]
    for row in of(rows, table="selectivity", audience="sweep"):
        assert row["from_pct"] <= row["eligible_pct"] < row["to_pct"]


@pytest.mark.gpu
def test_the_study_has_the_same_rows_on_a_gpu_as_on_a_cpu(rows: list[Row]) -> None:
    options = BenchOptions("eligibility", "cuda:0", tiny=True, sids=(22_222,), commit="abc")
    places = ("table", "catalogue", "mode", "bucket", "audience", "from_pct")
    for own, other in zip(study.measure(workload_of(options)), rows, strict=True):
        assert [own.get(name) for name in places] == [other.get(name) for name in places]
        if own["table"] in ("pass", "selectivity") and own["users"]:
            # Almost equal scores may decide for another SID.
            assert own["eligible_ads"] == pytest.approx(other["eligible_ads"], rel=0.02)
            assert own["score_mass_pct"] == pytest.approx(other["score_mass_pct"], abs=0.1)
