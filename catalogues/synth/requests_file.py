"""The users as Retrieve requests: one JSON object a line, as a person would write them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grace.catalogues.synth.catalogue import Catalogue
from grace.catalogues.synth.events import ACTION_IDS, ACTION_ODDS, HOUR_MS, NOW_MS
from grace.catalogues.synth.schema import DEVICES
from grace.catalogues.synth.spec import Stream
from grace.catalogues.synth.users import Kind, User, make_users

MAX_ADS = 100
DEVICE_MODELS = 40  # cardinality of the categorical feature; ids run from 1
_MODELS_PER_DEVICE = (DEVICE_MODELS - 1) // len(DEVICES)
_DENIED_ADS = 5


def write_requests(catalogue: Catalogue, path: Path) -> int:
    """Writes one request per user; returns how many."""
    lines = [json.dumps(request, ensure_ascii=False) for request in make_requests(catalogue)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)


def make_requests(catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """Every request in the JSON form of the Retrieve API."""
    rng = catalogue.spec.rng(Stream.REQUESTS)
    for number, user in enumerate(make_users(catalogue)):
        request: dict[str, Any] = {
            "request_id": f"u{number:03}-{user.name}",
            "sid_space": catalogue.spec.sid_space,
            "user": {name: {"values": list(values)} for name, values in user.attributes.items()},
            "features": _features(catalogue, user, rng),
            "max_ads": MAX_ADS,
        }
        if user.kind is Kind.MEMBER:
            seen = np.unique(catalogue.ad_offsets[user.clicks])
            denied = catalogue.ad_ids[seen[:_DENIED_ADS]]
            request["exclude_ads"] = [str(ad_id) for ad_id in denied]
        if number % 4 == 0:
            request["include_sids"] = True
        yield request


def _features(catalogue: Catalogue, user: User, rng: np.random.Generator) -> dict[str, Any]:
    count = len(user.clicks)
    first_model = 1 + DEVICES.index(user.device) * _MODELS_PER_DEVICE
    model = rng.integers(first_model, first_model + _MODELS_PER_DEVICE)
    features: dict[str, Any] = {
        "dense": {"hour": {"values": [user.hour]}},
        "categorical": {"device": {"ids": [str(model)]}},
    }
    if count:
        ages_ms = np.cumsum(rng.exponential(8 * HOUR_MS, count) + 1000).astype(np.int64)
        actions = rng.choice(ACTION_IDS, count, p=ACTION_ODDS)
        features["sequences"] = {
            "clicks": {
                "sids": catalogue.tree.sids[user.clicks].reshape(-1).tolist(),
                "timestamps_ms": [str(NOW_MS - age) for age in ages_ms[::-1]],
                "side": {"action": {"ids": [str(action) for action in actions]}},
            }
        }
    return features
