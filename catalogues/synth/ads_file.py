"""The ads as Parquet: one row an ad, by ascending id, one column per targeting rule."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace.catalogues.synth.arrays import Int64Array
from grace.catalogues.synth.catalogue import Catalogue
from grace.catalogues.synth.rules import ValueLists
from grace.catalogues.synth.schema import RULE_COLUMNS
from grace.catalogues.synth.spec import SID_LENGTH
from grace.catalogues.synth.titles import TitleWords, titles

ROWS_PER_GROUP = 2**17

Progress = Callable[[int, int], None]  # (ads written, ads in all)


def ads_schema(catalogue: Catalogue) -> pa.Schema:
    """The file's columns; its metadata names the SID space and the vocabulary."""
    spec = catalogue.spec
    strings = pa.list_(pa.string())
    return pa.schema(
        [
            ("ad_id", pa.int64()),
            ("sid", pa.list_(pa.uint16())),
            ("ad_weight", pa.float32()),
            ("title", pa.string()),
            *((name, strings) for name in RULE_COLUMNS),
        ],
        metadata={
            "grace.sid_space": spec.sid_space,
            "grace.vocab_sizes": ",".join(str(size) for size in spec.vocab_sizes),
        },
    )


def write_ads(
    catalogue: Catalogue,
    path: Path,
    progress: Progress | None = None,
    rows_per_group: int = ROWS_PER_GROUP,
) -> None:
    """Writes row group after row group, so that memory does not grow with the file."""
    schema = ads_schema(catalogue)
    words = TitleWords.of(catalogue.places.city_names)
    lists = [_arrow_lists(column.lists) for column in catalogue.campaigns.columns]
    by_id, ad_sids = np.argsort(catalogue.ad_ids), catalogue.ad_sids
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, len(by_id), rows_per_group):
            ads = by_id[start : start + rows_per_group]
            writer.write_table(_rows(catalogue, ads, ad_sids[ads], words, lists, schema))
            if progress is not None:
                progress(start + len(ads), len(by_id))


def _rows(
    catalogue: Catalogue,
    ads: Int64Array,
    sids: Int64Array,
    words: TitleWords,
    lists: list[pa.ListArray],
    schema: pa.Schema,
) -> pa.Table:
    campaign = catalogue.ad_campaigns[ads]
    tokens = catalogue.tree.sids[sids].reshape(-1)
    token_offsets = np.arange(0, len(tokens) + 1, SID_LENGTH, dtype=np.int32)
    columns = [
        pa.array(catalogue.ad_ids[ads]),
        pa.ListArray.from_arrays(pa.array(token_offsets), pa.array(tokens)),
        pa.array(catalogue.ad_weights[ads]),
        titles(catalogue, words, sids, ads),
    ]
    for column, table in zip(catalogue.campaigns.columns, lists, strict=True):
        chosen = column.choice[campaign]
        columns.append(table.take(pa.array(chosen, mask=chosen < 0)))
    return pa.table(columns, schema=schema)


def _arrow_lists(lists: ValueLists) -> pa.ListArray:
    strings = pa.array(lists.values, pa.string()).take(pa.array(lists.items))
    return pa.ListArray.from_arrays(pa.array(lists.offsets.astype(np.int32)), strings)
