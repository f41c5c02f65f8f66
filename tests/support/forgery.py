"""Small snapshots on disk, and hostile ones: any array, any manifest, with right digests.

The digests are computed here from the words of docs/snapshot.md and not by the product, so a test
that loads what this wrote also says that the document is enough to write a snapshot.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xxhash

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import SnapshotError
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot, write_snapshot
from grace.index.targeting.schema import (
    Attribute,
    Flight,
    Property,
    Range,
    TargetingSchema,
    TargetSet,
)
from support.oracle import RawAd, Rules
from support.plain_builder import plain_snapshot

Fields = dict[str, Any]

SCHEMA = TargetingSchema(
    attributes=(
        Attribute("country", ("NO", "PT", "US")),
        Attribute("gender", ("female", "male", "unknown"), missing="unknown"),
        Attribute("weekday", tuple("0123456"), clock="day_of_week"),
    ),
    sets=(
        TargetSet("location", bloom_bits=64, bloom_hashes=2, max_request_values=8),
        TargetSet("audience", bloom_bits=128, bloom_hashes=4, max_request_values=8),
    ),
    hash_seed=7,
    entities=("campaign", "advertiser"),
    ranges=(Range("age"),),
    flights=(Flight("flight"),),
    properties=(Property("category"),),
)
VOCAB_SIZES = (4, 5, 9)


def some(*values: str) -> frozenset[str]:
    return frozenset(values)


CARS, FLIGHT = some("cars"), (1_767_225_600_000, 2**53)  # it ends after the year 9999
RULES: tuple[tuple[int, tuple[int, ...], float, Rules], ...] = (
    (11, (0, 1, 2), 0.5, {"country": (some("NO"), None), "location": (some("no/oslo"), None)}),
    (7, (0, 1, 2), 1.5, {"location": (some("no/oslo", "no/bergen"), None), "age": (18.0, None)}),
    (300, (0, 1, 8), 0.25, {"audience": (some("runners"), some("cyclists")), "category": CARS}),
    (5, (0, 3, 0), 0.0, {"country": (some("PT", "US"), None), "flight": FLIGHT}),
    (6, (0, 3, 0), 0.0, {"country": (some("PT", "US"), None), "flight": FLIGHT}),
    (63, (3, 0, 4), 2.0, {"gender": (None, some("male")), "location": (None, some("us/tx"))}),
    (111, (3, 4, 4), 0.0, {}),
    (2**63 - 1, (3, 4, 5), -1.0, {"audience": (some("runners", "café"), None)}),
)
ENTITIES: dict[int, dict[str, int]] = {
    11: {"campaign": 9, "advertiser": 3},
    7: {"campaign": 9, "advertiser": 3},
    300: {"campaign": 12, "advertiser": 3},
    5: {"campaign": 30, "advertiser": 5},
    6: {"advertiser": 5},
    63: {"campaign": 9, "advertiser": 3},
    111: {},
    2**63 - 1: {"campaign": 12, "advertiser": 2**40},
}
GROUPS = (some("runners", "cyclists"), some("café"))
CLAUSES: dict[int, tuple[Rules, ...]] = {
    63: ({"age": (None, 17.0)}, {"weekday": (some("5", "6"), None), "category": CARS | {"sport"}}),
    111: ({"age": (None, 17.0)}, {"audience_all": GROUPS}),
}
ADS = tuple(RawAd(*ad, ENTITIES[ad[0]], CLAUSES.get(ad[0], ())) for ad in RULES)


def small_snapshot(version: int = 1) -> Snapshot:
    """Every array has several entries, every level several nodes."""
    return plain_snapshot(SCHEMA, VOCAB_SIZES, ADS, MatcherMode.CD, version)


def tiny_snapshot(version: int = 1) -> Snapshot:
    """A snapshot with as few files as possible, for tests whose time grows with the files."""
    schema = TargetingSchema(attributes=SCHEMA.attributes, sets=(), hash_seed=0)
    ads = (RawAd(63, (0, 1)), RawAd(7, (1, 0), rules={"country": (some("NO"), None)}))
    return plain_snapshot(schema, (2, 2), ads, MatcherMode.CD, version)


def make_version(root: Path, version: int = 1) -> Path:
    return write_snapshot(small_snapshot(version), root)


def read_fields(version: Path) -> Fields:
    fields: Fields = json.loads((version / "MANIFEST.json").read_bytes())
    return fields


def write_fields(version: Path, fields: Fields) -> None:
    """A manifest of any JSON values, under a right digest."""
    content = json.dumps({**fields, "manifest_xxh3_128": "0" * 32}, indent=1).encode() + b"\n"
    _write_blank(version, content)


def forge_manifest(version: Path, change: Callable[[Fields], None]) -> None:
    fields = read_fields(version)
    change(fields)
    write_fields(version, fields)


def forge_text(version: Path, old: str, new: str) -> None:
    """Replaces text that json.dumps would not write, and makes the digest right again."""
    path = version / "MANIFEST.json"
    digest = read_fields(version)["manifest_xxh3_128"]
    text = path.read_text(encoding="utf-8").replace(digest, "0" * 32)
    assert text.count(old) >= 1, old
    _write_blank(version, text.replace(old, new, 1).encode())


def _write_blank(version: Path, content: bytes) -> None:
    digest = xxhash.xxh3_128_hexdigest(content).encode()
    before, zeros, after = content.rpartition(b"0" * 32)
    assert zeros
    (version / "MANIFEST.json").write_bytes(before + digest + after)


def refusal(version: Path, **how: Any) -> SnapshotError:
    """Require that a load refuses a version, and return why."""
    with pytest.raises(SnapshotError) as caught:
        load_snapshot(version, **how)
    return caught.value


def read_array_file(version: Path, file: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(version / file)
    return array


def forge_array(version: Path, file: str, array: npt.NDArray[Any]) -> None:
    """Puts another array in a file, and its dtype, shape, size and digest in the manifest."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    forge_bytes(version, file, buffer.getvalue(), array.dtype.str, array.shape)


def forge_bytes(
    version: Path,
    file: str,
    content: bytes,
    dtype: str | None = None,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Puts any bytes in a file; the manifest has their size and digest."""
    (version / file).write_bytes(content)

    def change(fields: Fields) -> None:
        entry = next(entry for entry in fields["files"] if entry["file"] == file)
        entry["bytes"] = len(content)
        entry["xxh3_128"] = xxhash.xxh3_128_hexdigest(content)
        if dtype is not None:
            entry["dtype"] = dtype
        if shape is not None:
            entry["shape"] = list(shape)

    forge_manifest(version, change)
