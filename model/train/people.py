"""People whose targeting attributes are known: they measure a model with targeting.

They are the log's held-out users, if it has columns named like the attributes and sets of
targeting.yaml. Otherwise they are the users of the folder's `requests.jsonl`, one Retrieve request
per line as JSON. The model has to predict the newest event of each history.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import InputError
from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import REQUESTS_FILE, DataFolder
from grace.index.users.user_rows import UserAttributes
from grace.model.definition.spec import ModelSpec
from grace.model.train.interactions import Interactions, history_input
from grace.model.train.log_reader import SidLeaves

Int64 = npt.NDArray[np.int64]

UNKNOWN_PEOPLE = (
    "no data say who the users are: add columns named like the attributes of targeting.yaml to the "
    f"log, or {REQUESTS_FILE} to the folder"
)


@dataclass(frozen=True, slots=True)
class People:
    """Histories, the events that a model has to predict, and the attributes of their users."""

    source: str
    log: Interactions
    events: Int64
    attributes: tuple[UserAttributes, ...]


def find_people(
    folder: DataFolder, catalogue: Snapshot, log: Interactions, spec: ModelSpec, most: int
) -> People | None:
    """Return at most this number of people, or None if no data say who the users are."""
    if log.attributes:
        events = log.last_events(most)
        source = f"columns {', '.join(log.attributes)} of the log"
        return People(source, log, events, tuple(map(log.attributes_at, events.tolist())))
    path = folder.folder / REQUESTS_FILE
    return _people_of_requests(path, catalogue, spec, most) if path.exists() else None


def _people_of_requests(
    path: Path, catalogue: Snapshot, spec: ModelSpec, most: int
) -> People | None:
    """Read the histories that have at least two events of the catalogue."""
    (name,) = spec.sequences
    side = history_input(spec).side
    length, leaves_of_sids = catalogue.trie.sid_length, SidLeaves(catalogue.trie)
    histories: list[Mapping[str, Int64]] = []
    attributes: list[UserAttributes] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            request = json.loads(line)
            user = {key: tuple(value["values"]) for key, value in request["user"].items()}
            events = request.get("features", {}).get("sequences", {}).get(name, {})
            sids = np.array(events.get("sids", ()), np.int64).reshape(-1, length)
            columns = {
                "leaves": leaves_of_sids(sids),
                "times": _times(events, len(sids)),
                **{each: _ids(events, each, len(sids)) for each in side},
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}: line {number}: not a Retrieve request as JSON ({error!r}); correct or "
                "remove it"
            ) from None
        known = columns["leaves"] >= 0
        if known.sum() > 1:
            histories.append({key: values[known] for key, values in columns.items()})
            attributes.append(user)
    if not histories:
        return None
    log = _log_of(histories, tuple(side), catalogue)
    events = log.last_events(most)
    chosen = np.searchsorted(log.offsets, events, side="right") - 1
    own = tuple(attributes[user] for user in chosen)
    return People(f"the users of {path.name}", log, events, own)


def _log_of(
    histories: list[Mapping[str, Int64]], side: tuple[str, ...], catalogue: Snapshot
) -> Interactions:
    joined = {key: np.concatenate([each[key] for each in histories]) for key in histories[0]}
    counts = [len(each["leaves"]) for each in histories]
    trie = catalogue.trie
    return Interactions(
        offsets=np.cumsum([0, *counts]),
        user_ids=np.arange(len(counts)),
        held_out=np.ones(sum(counts), np.bool_),
        leaves=joined["leaves"],
        leaf_sids=trie.sids(np.arange(trie.num_leaves)),
        times_ms=joined["times"],
        side={name: joined[name] for name in side},
    )


def _times(events: Mapping[str, Any], count: int) -> Int64:
    """Return the events' times; a request may leave them out."""
    given = np.array(events.get("timestamps_ms") or [0] * count).astype(np.int64)
    return given.reshape(count)


def _ids(events: Mapping[str, Any], name: str, count: int) -> Int64:
    """Return one side input; id 0 stands for a missing one."""
    given = events.get("side", {}).get(name, {}).get("ids") or [0] * count
    return np.array(given).astype(np.int64).reshape(count)
