"""The paper's catalogue in any size: its snapshot in any mode, its users, and their requests.

Its arrays are made when a snapshot needs them, and once for every mode. Commands that share a
folder (`--cache`) build the snapshot once: 30 million SIDs take a minute.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from grace.catalogues.paper.catalogue import PaperCatalogue, make_paper_catalogue
from grace.catalogues.paper.draws import Draws
from grace.catalogues.paper.population import make_users
from grace.catalogues.paper.snapshots import paper_snapshot
from grace.catalogues.paper.spec import PAPER_SIDS, PaperKnobs, PaperSpec
from grace.configs.eligibility import CD, Eligibility, MatcherMode
from grace.configs.machine import available_cores
from grace.index.matchers.derive import derive
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot, publish, versions, write_snapshot
from grace.index.users.user_rows import UserAttributes, UserEncoder, request_of_user
from grace.kernels import UserTensors
from grace.model.definition import spec as declared
from grace.proto.retrieval_pb2 import Events, Features, RetrieveRequest

SEED = 1
IDS_PER_BAG = 20
MAX_ADS = 500
FIRST_VERSION = 1

_SECOND_LEVEL = 512 * 384
_DAY_MS = 86_400_000


class Catalogue:
    def __init__(self, sids: int, cache: Path | None = None) -> None:
        """`cache` is a folder of snapshots that this code made; missing ones are added to it."""
        self.spec = catalogue_spec(sids)
        self._cache = cache

    def snapshot(self, mode: MatcherMode) -> Snapshot:
        """Return the snapshot in a mode; `static` and `dynamic` have the paper's partitions."""
        eligibility = Eligibility.of(mode)
        if self._cache is not None:
            return load_snapshot(self.written(self._cache), eligibility=eligibility)
        return derive(self._made, eligibility, available_cores())

    def written(self, folder: Path, last: int = FIRST_VERSION) -> Path:
        """Return the snapshots' root, in the cache if there is one, or else in `folder`.

        It has the versions 1 to `last`, which differ only in their number. The first is current.
        """
        root = (self._cache or folder) / self.spec.sid_space
        root.mkdir(parents=True, exist_ok=True)
        missing = sorted({*range(FIRST_VERSION, last + 1)} - {*versions(root)})
        if missing:
            is_new = missing[0] == FIRST_VERSION
            snapshot = self._made if is_new else load_snapshot(root, eligibility=CD)
            for version in missing:
                facts = replace(snapshot.facts, version=version)
                write_snapshot(replace(snapshot, facts=facts), root)
        publish(root, FIRST_VERSION)
        return root

    def attributes(self, first: int, count: int) -> list[UserAttributes]:
        """Users `first`, `first` + 1, ... of the population, with 64 random locations each."""
        return list(make_users(first + count, Draws(self.spec.seed), self.spec.knobs)[first:])

    def users(
        self, snapshot: Snapshot, device: torch.device, batches: int, batch: int
    ) -> list[UserTensors]:
        """The first users of the population, in batches."""
        encoder = UserEncoder(snapshot.schema, snapshot.set_values)
        return [
            UserTensors.of(encoder.encode(self.attributes(begin, batch)), device)
            for begin in range(0, batches * batch, batch)
        ]

    @cached_property
    def paper(self) -> PaperCatalogue:
        return make_paper_catalogue(self.spec, available_cores())

    @cached_property
    def _made(self) -> Snapshot:
        return paper_snapshot(self.paper, available_cores())


def catalogue_spec(sids: int) -> PaperSpec:
    """Return the catalogue of a size: it keeps the paper's two-token prefixes, and changes deeper.

    Fan-outs of positions 2 and 3 grow alike, so that catalogues differ in what a trie of that size
    must differ in, and not in the number of first tokens. Very small ones, for tests, have the
    generator's own shape.
    """
    if sids == PAPER_SIDS or sids < 2 * _SECOND_LEVEL:
        return PaperSpec(sids, SEED)
    knobs = PaperKnobs()
    grown = float((sids / PAPER_SIDS) ** 0.5)
    last = max(1.5, knobs.fan_out_4 * grown)
    return PaperSpec(
        sids, SEED, replace(knobs, fan_out_3=sids / (_SECOND_LEVEL * last), fan_out_4=last)
    )


def full_requests(
    spec: declared.ModelSpec, users: Iterable[UserAttributes], seed: int
) -> list[RetrieveRequest]:
    """Return a request per user, with every declared feature at its longest."""
    rng = np.random.default_rng(seed)
    requests = []
    for number, user in enumerate(users):
        request = RetrieveRequest(
            request_id=f"r{number:05}",
            sid_space=spec.sid_space,
            features=_features(spec, rng),
            max_ads=MAX_ADS,
        )
        request.MergeFrom(request_of_user(user))
        requests.append(request)
    return requests


def _features(spec: declared.ModelSpec, rng: np.random.Generator) -> Features:
    features = Features()
    for name, value in spec.inputs.items():
        if isinstance(value, declared.DenseInput):
            numbers = rng.uniform(0.0, 100.0, value.size).round(3)
            features.dense[name].values.extend(numbers.tolist())
        elif isinstance(value, declared.CategoricalInput):
            features.categorical[name].ids.append(int(rng.integers(value.cardinality)))
        elif isinstance(value, declared.BagInput):
            features.bags[name].ids.extend(rng.integers(1 << 62, size=IDS_PER_BAG).tolist())
        else:
            features.sequences[name].CopyFrom(_events(spec, value, rng))
    return features


def _events(
    spec: declared.ModelSpec, value: declared.SequenceInput, rng: np.random.Generator
) -> Events:
    events = value.max_length
    sids = rng.integers(spec.vocab_sizes, size=(events, spec.sid_length))
    times = np.sort(rng.integers(90 * _DAY_MS, size=events))
    message = Events(sids=sids.flatten().tolist(), timestamps_ms=times.tolist())
    for name, cardinality in value.side.items():
        message.side[name].ids.extend(rng.integers(cardinality, size=events).tolist())
    return message
