"""Rows of the tiny catalogue's ads as updates put them, and the plain answers with changed ads."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from grace.configs.eligibility import MatcherMode
from grace.configs.serving import ServingConfig, ThreadsConfig
from grace.server.engine.serving_pair import ServingPair, serving_pair
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.serving_files import ServingFiles
from support.stage_cases import GENERATION

Row = Mapping[str, Any]


def table_rows(files: ServingFiles) -> dict[int, Row]:
    """Return the rows of the ads table, by id."""
    rows = pq.read_table(files.catalogue / "ads.parquet").to_pylist()
    return {row["ad_id"]: row for row in rows}


def json_row(row: Row) -> str:
    """Return a row as a line of JSON, without what is null."""
    return json.dumps({name: each for name, each in row.items() if each is not None}, default=_text)


def table_row(text: str) -> Row:
    """Return the row of a line, as `table_rows` does."""
    row = {"ad_weight": 0.0, "campaign": None, "advertiser": None, **json.loads(text)}
    for name in ("flight_start", "flight_end"):
        if name in row:
            row[name] = datetime.fromisoformat(row[name])
    return row


def _text(value: object) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()


def changed_pair(pair: ServingPair, ads: Iterable[RawAd]) -> ServingPair:
    """Return the pair, but with a plain build of these ads as its snapshot."""
    before = pair.snapshot
    plain = plain_snapshot(before.schema, before.trie.vocab_sizes, list(ads), MatcherMode.EXACT)
    config = ServingConfig(Path(), Path(), GENERATION, threads=ThreadsConfig(post=1))
    return serving_pair(replace(plain, facts=before.facts), pair.model, config)
