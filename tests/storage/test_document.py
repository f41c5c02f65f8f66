"""docs/snapshot.md is enough to write a reader, and says what the code says."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace.bench.markdown import replaced
from grace.bench.reference_tables import arrays_table
from grace.index.storage import publish, write_snapshot
from grace.index.storage.manifest import FORMAT_VERSION
from support.forgery import make_version, read_fields
from support.oracle import asked_with, eligible
from support.plain_builder import plain_snapshot
from support.strategies import (
    random_case,
    random_clocks,
    random_intervals_and_properties,
    random_schema,
)


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "snapshot.md").read_text(encoding="utf-8")


def test_the_table_of_arrays_is_that_of_the_code(page: str) -> None:
    assert replaced(page, "arrays", arrays_table()) == page


def test_every_key_of_a_manifest_is_in_the_document(page: str, tmp_path: Path) -> None:
    fields = read_fields(make_version(tmp_path))
    for key in [*fields, *fields["counts"], *fields["files"][0]]:
        assert f"`{key}`" in page, key
    assert f"format, version {FORMAT_VERSION}" in page


@pytest.mark.parametrize("seed", range(9))
def test_a_reader_made_of_the_page_alone_agrees_with_the_oracle(
    page: str, seed: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    few = random_schema(rng, (3,) * (seed % 2), num_sets=seed % 3)  # of many, one fails each user
    attributes = (*few.attributes, *random_clocks(rng))
    others = random_intervals_and_properties(rng)
    case = random_case(rng, 63, 63, replace(few, attributes=attributes, **others))
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
    write_snapshot(snapshot, tmp_path)
    publish(tmp_path, 1)
    reader = reader_of(page)(tmp_path)
    for user in case.users:
        may_see = sorted(ad.ad_id for ad in case.ads if eligible(case.schema, ad, user))
        assert sorted(reader.ads({"user": user, **asdict(asked_with(user))})) == may_see
    assert [reader.sid(leaf) for leaf in range(reader.nodes[-1])] == sorted(
        {ad.sid: list(ad.sid) for ad in case.ads}.values()
    )
    for ad in case.ads:
        found = {name: reader.entity(name, ad.ad_id) for name in case.schema.entities}
        assert found == {name: ad.entities.get(name) for name in case.schema.entities}


def reader_of(page: str) -> Any:
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    return names["Reader"]
