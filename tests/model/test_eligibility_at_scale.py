"""No ineligible ad is returned, and no eligible ad is lost while decoding: in every mode, at scale.

Every step of a search is compared with the truth of the raw table.
CI asks about thousands of SIDs, `make soak` about a million.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.configs.generation import BeamProfile
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.trie import NO_NODE
from grace.index.updates.live_ads import LiveAds
from grace.index.updates.state import UpdateState, touched_by
from grace.index.updates.update import AdUpdate
from grace.index.users.user_rows import UserEncoder
from grace.kernels import Beams, Candidates, DecodeIndex, Ops, UserTensors, load_ops, with_eligible
from grace.kernels.decode.select_beams import Choice
from grace.model.definition.beam_search import beam_search
from grace.model.definition.decoder import Decoder
from grace.model.definition.t5_spec import DecoderSpec
from support.models import random_context, random_decoder
from support.raw_catalogue import Ints, Kind, RawCatalogue, Scale, Truth
from support.strategies import asking

CPU = torch.device("cpu")
NO_PREFIX = -1
BATCH = 16
SMALL = Scale(sids=3333, rules=177, users=55, vocab_sizes=(11, 17, 29))
LARGE = Scale(sids=1_000_000, rules=2503, users=1013, vocab_sizes=(127, 127, 131))
NARROW, WIDE = BeamProfile((1, 9, 57), 63), BeamProfile((1, 64, 256), 256)
KINDS = {
    "attributes": Kind((1, 63, 64, 250), 0, rules_follow_sids=True, least_includes=1),
    "sets": Kind((), 3, rules_follow_sids=False, least_includes=2),
    "both-following": Kind((5, 65), 2, rules_follow_sids=True, least_includes=1),
    "both-scattered": Kind((5, 65), 2, rules_follow_sids=False),
    "all": Kind(None, None, rules_follow_sids=True),
}
DECODER = DecoderSpec(layers=1, d_model=8, heads=1, d_head=8, d_ff=8)

all_modes = pytest.mark.parametrize("mode", list(MatcherMode), ids=lambda mode: mode.value)


@dataclass
class Tally:
    """The counts of many searches."""

    ads: int = 0
    full: int = 0  # requests that filled all beams of the last step
    enough: int = 0  # requests that have as many eligible SIDs


@dataclass
class Watch:
    """Follows one search by its tokens alone: node numbers are what it checks."""

    catalogue: RawCatalogue
    valid: Truth  # of one user who may see every ad
    reachable: Truth  # what admission must not lose
    exact: bool

    def observed(self, ops: Ops, requests: int) -> Ops:
        self._step, self._ops = 0, ops
        self.prefixes: Ints = np.zeros((requests, 1), np.int64)
        return replace(ops, admit_children=self._admit, select_beams=self._select)

    def _admit(self, nodes: Tensor, users: UserTensors, index: DecodeIndex) -> Candidates:
        candidates = self._ops.admit_children(nodes, users, index)
        requests, beams = nodes.shape
        size, level = self.catalogue.vocab_sizes[self._step], self._step + 1
        live = self.prefixes != NO_PREFIX
        assert np.array_equal(live, nodes.numpy() != NO_NODE)
        rows = np.repeat(np.arange(nodes.numel()), np.diff(candidates.offsets.numpy()))
        tokens = candidates.tokens.numpy()
        assert (np.diff(rows * size + tokens) > 0).all(), "a row's tokens ascend"
        assert live.ravel()[rows].all(), "dead beams have no children"
        prefixes, owners = self.prefixes.ravel()[rows] * size + tokens, rows // beams
        below = self.reachable.levels[level]
        eligible = (below[prefixes] >> owners.astype(np.uint32) & 1).astype(np.bool_)
        children = below.reshape(-1, size)[np.where(live, self.prefixes, 0)]
        bits = np.arange(requests, dtype=np.uint32)[:, None, None]
        wanted = ((children >> bits & 1) * live[:, :, None]).sum(axis=(1, 2))
        assert eligible.sum() == wanted.sum(), "a child that leads to an eligible ad is lost"
        assert self.valid.levels[level][prefixes].all(), "a candidate that the table does not have"
        assert eligible.all() or not self.exact
        self._room = wanted if self.exact else np.bincount(owners, minlength=requests)
        return candidates

    def _select(self, given: Choice) -> Beams:
        beams = self._ops.select_beams(given)
        live, parents = beams.nodes.numpy() != NO_NODE, beams.parents.numpy()
        size = self.catalogue.vocab_sizes[self._step]
        requests, width = self.prefixes.shape
        assert (parents // width == np.arange(requests)[:, None]).all(), "beams change requests"
        prefixes = self.prefixes.ravel()[parents] * size + beams.tokens.numpy()
        for own, alive in zip(prefixes, live, strict=True):
            assert len(np.unique(own[alive])) == alive.sum(), "a prefix twice"
        self.prefixes = np.where(live, prefixes, NO_PREFIX)
        assert np.array_equal(live.sum(axis=1), np.minimum(given.k, self._room)), "beams are short"
        self._step += 1
        return beams


class Searcher:
    """A snapshot with what serving keeps of it, compared with the table that it was built from."""

    def __init__(
        self, catalogue: RawCatalogue, snapshot: Snapshot, decoder: Decoder, profile: BeamProfile
    ) -> None:
        self.catalogue, self.snapshot = catalogue, snapshot
        self.index = DecodeIndex.of(snapshot, CPU)
        self.live = LiveAds(snapshot)
        self.tally = Tally()
        self._state = UpdateState()
        self._decoder, self._profile, self._ops = decoder, profile, load_ops(CPU)
        self._encoder = UserEncoder(snapshot.schema, snapshot.set_values)
        self._matcher = ExactMatcher(snapshot, 2)
        everyone = np.ones((1, len(catalogue.rules)), np.bool_)
        self._valid = Truth(catalogue, everyone, None)

    def stop(self, stopped: npt.NDArray[np.bool_]) -> None:
        """Stop these ads, and resume all others."""
        ids = np.sort(self.catalogue.ad_id[stopped])
        before = self._state.stopped
        old = before["ad"].sorted_ids() if "ad" in before else np.empty(0, np.int64)
        stop, resume = np.setdiff1d(ids, old), np.setdiff1d(old, ids)
        update = AdUpdate(
            sequence=self._state.sequence + 1,
            full=self._state.sequence == 0,
            stop={"ad": stop} if len(stop) else {},
            resume={"ad": resume} if len(resume) else {},
        )
        self._state.apply(update)
        self.live.refresh(self._state, touched_by([update]))

    def write_stops(self) -> None:
        """Let decoding see the stops, as serving does before each batch."""
        if self.index.exact is not None:
            self.live.pass_pairs(self.index.write_pairs)

    def search(
        self, places: Sequence[int], stopped: npt.NDArray[np.bool_] | None, seed: int
    ) -> None:
        """Search for the users at `places`, with the ads that `stop` stopped, and compare."""
        passes = self.catalogue.passes[list(places)]
        truth = Truth(self.catalogue, passes, stopped)
        exact = self.snapshot.mode is MatcherMode.EXACT
        # The other modes do not see stops while decoding, so they must lose no stopped ad either.
        whole = truth if exact or stopped is None else Truth(self.catalogue, passes, None)
        watch = Watch(self.catalogue, self._valid, whole, exact)
        rows = self._encoder.encode([asking(self.catalogue.users[place]) for place in places])
        users = with_eligible(UserTensors.of(rows, CPU), self.index, self._ops)
        context = random_context(len(places), 3, 4, seed)
        ops = watch.observed(self._ops, len(places))
        found = beam_search(self._decoder, context, users, self.index, self._profile, ops)
        found.require_finite()
        leaves, requests = found.leaves.numpy(), len(places)
        self._check_leaves(watch.prefixes, leaves, truth)
        borders = np.arange(requests + 1) * self._profile.num_sids
        ads = self._matcher.match(
            *(rows, borders, leaves.ravel(), found.scores.numpy().ravel(), len(self.catalogue.sid)),
            stopped=self.live.view.stopped,
        )
        returned = self.catalogue.ads_of_ids(ads.ad_ids)
        owners = np.repeat(np.arange(requests), np.diff(ads.offsets))
        self._check_ads(watch.prefixes, owners * len(self.catalogue.sid) + returned, truth)

    def _check_leaves(self, sids: Ints, leaves: npt.NDArray[np.int32], truth: Truth) -> None:
        alive = sids != NO_PREFIX
        assert np.array_equal(alive, leaves != NO_NODE)
        tally, requests = self.tally, np.nonzero(alive)[0]
        eligible = truth.levels[-1][sids[alive]] >> requests.astype(np.uint32) & 1
        assert eligible.all() or self.snapshot.mode is not MatcherMode.EXACT
        tally.full += int(alive.all(axis=1).sum())
        bits = range(len(sids))
        counts = [np.count_nonzero(truth.levels[-1] & np.uint32(1 << bit)) for bit in bits]
        tally.enough += sum(int(count) >= sids.shape[1] for count in counts)
        assert np.array_equal(self.catalogue.sids[leaves[alive]], sids[alive])

    def _check_ads(self, sids: Ints, returned: Ints, truth: Truth) -> None:
        """`returned` has request * ads + the place of each returned ad."""
        catalogue, num_ads = self.catalogue, len(self.catalogue.sid)
        requests, beams = np.nonzero(sids != NO_PREFIX)
        places = np.searchsorted(catalogue.sids, sids[requests, beams])
        begins, sizes = catalogue.first_ads[places], np.diff(catalogue.first_ads)[places]
        owners = np.repeat(requests, sizes)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        ads = np.repeat(begins, sizes) + within
        eligible = (truth.ads[ads] >> owners.astype(np.uint32) & 1).astype(np.bool_)
        wanted = (owners * num_ads + ads)[eligible]
        self.tally.ads += len(returned)
        # Those of the generated SIDs that are eligible and not stopped, and no others.
        assert np.array_equal(np.sort(returned), np.sort(wanted))


@pytest.fixture(scope="module", params=KINDS)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RawCatalogue:
    return RawCatalogue.make(KINDS[request.param], SMALL, 3, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module", params=KINDS)
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RawCatalogue:
    return RawCatalogue.make(KINDS[request.param], LARGE, 5, tmp_path_factory.mktemp("large"))


def searcher(
    catalogue: RawCatalogue, snapshot: Snapshot, profile: BeamProfile = NARROW
) -> Searcher:
    decoder = random_decoder(DECODER, catalogue.vocab_sizes, 4, 1)
    return Searcher(catalogue, snapshot, decoder, profile)


def compare_all_users(searcher: Searcher, size: int = BATCH) -> Tally:
    """Search for every user, in batches; every other batch has a tenth of the ads stopped."""
    catalogue, rng = searcher.catalogue, np.random.default_rng(7)
    none = np.zeros(len(catalogue.sid), np.bool_)
    for batch, first in enumerate(range(0, len(catalogue.users), size)):
        stopped = catalogue.some_stopped(rng) if batch % 2 else None
        searcher.stop(none if stopped is None else stopped)
        searcher.write_stops()
        last = min(first + size, len(catalogue.users))
        searcher.search(range(first, last), stopped, seed=batch)
    return searcher.tally


def assert_full_searches(tally: Tally, mode: MatcherMode, catalogue: RawCatalogue) -> None:
    users = len(catalogue.users)
    assert tally.full <= tally.enough or mode is not MatcherMode.EXACT
    assert tally.full > users // 9, "a test of full beams needs some"
    assert tally.ads > users


@all_modes
def test_every_step_of_thousands_of_sids_keeps_the_promises(
    small: RawCatalogue, mode: MatcherMode
) -> None:
    tally = compare_all_users(searcher(small, small.snapshot(mode)), size=21)
    assert_full_searches(tally, mode, small)


@pytest.mark.soak
@all_modes
def test_every_step_of_a_million_sids_keeps_the_promises(
    large: RawCatalogue, mode: MatcherMode
) -> None:
    tally = compare_all_users(searcher(large, large.snapshot(mode), WIDE))
    assert_full_searches(tally, mode, large)
    if mode is MatcherMode.EXACT:
        # The ads of each rule spread over many first tokens, so 64 beams lead to enough of them.
        assert tally.full == tally.enough
