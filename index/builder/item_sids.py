"""Join SIDs to the ads from a table of items. A codebook may first add the SIDs of new ads to it.

Memory holds 8 + 2 L bytes per item, in order of the ads' numbers, and twice that while they are put
in order. An item that the ads' id map does not know belongs to no ad.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.arrays import Int64, UInt16
from grace.configs.errors import InputError
from grace.index.builder.report import Steps
from grace.index.builder.source import AdsSource
from grace.index.codebook.folder import CODEBOOK_YAML, CodebookFacts, read_codebook
from grace.index.codebook.items import Items, items_of
from grace.index.codebook.make import give_sids
from grace.index.codebook.report import SidReport
from grace.index.progress import Advance, Notify
from grace.index.tables.data_folder import SIDS_FILE, DataFolder, local_folder
from grace.index.tables.item_numbers import IdMap, map_lock
from grace.index.tables.rows import read_rows
from grace.index.tables.sid_table import COLUMNS, open_sid_table, sid_table_at
from grace.index.tables.table_file import TableFile

_ENOUGH_NEW = 1000  # ads, to compare their error with the codebook's
_MOST_ERROR = 1.5  # times the codebook's
_BATCH_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class ItemSids:
    """The SIDs of items.   numbers int64 [items], ascending; tokens uint16 [items, L]"""

    numbers: Int64
    tokens: UInt16

    def places(self, ad_ids: Int64) -> Int64:
        """Return the place of each ad among the items, -1 for an ad without a SID."""
        if len(self.numbers) == 0:
            return np.full(len(ad_ids), -1)
        # Ascending needles stay in the processor's cache.
        order = np.argsort(ad_ids, kind="stable")
        found = np.searchsorted(self.numbers, ad_ids[order])
        np.minimum(found, len(self.numbers) - 1, out=found)
        found[self.numbers[found] != ad_ids[order]] = -1
        places = np.empty(len(ad_ids), np.int64)
        places[order] = found
        return places

    def before(self, others: "ItemSids") -> "ItemSids":
        """Return these SIDs, and from `others` those of items that are not here."""
        new = self.places(others.numbers) < 0
        numbers = np.concatenate([self.numbers, others.numbers[new]])
        tokens = np.concatenate([self.tokens, others.tokens[new]])
        order = np.argsort(numbers)
        return ItemSids(numbers[order], tokens[order])


def sids_of_items(
    data: DataFolder,
    ads: AdsSource,
    names: IdMap | None,
    vocab_sizes: tuple[int, ...],
    steps: Steps,
    notify: Notify,
) -> ItemSids | None:
    """Return all items' SIDs, those of new ads by a codebook; None if the ads have a SID column.

    Read the folder's own SIDs only if an ad is not in the table of given ones.
    """

    def read_from(address: str) -> ItemSids:
        table = open_sid_table(address)
        with steps.run("read SIDs", table.count_rows()) as advance:
            return read_item_sids(table, names, vocab_sizes, advance)

    given = None if data.given_sids is None else read_from(data.given_sids)
    own = data.sids
    if own is None or (given and not len(_ads_without_sid(ads, names, given, lambda _: None))):
        return given

    def read() -> ItemSids:
        return given.before(read_from(own)) if given else read_from(own)

    codebook = _codebook(data)
    if codebook is None or data.embeddings is None:
        return read()
    with map_lock(codebook / SIDS_FILE):
        sids = read()
        with steps.run("give SIDs to new ads", ads.rows) as advance:
            new = _ads_without_sid(ads, names, sids, advance)
            if len(new):
                _, facts = read_codebook(codebook)
                items = _with_one_vector(items_of(data.embeddings, facts.dims), new)
                if items is not None:
                    report = give_sids(items, codebook, None, lambda *_: None)
                    steps.new_sids = report.items
                    if fault := _worse(report, facts):
                        notify(f"{codebook}: {fault}")
        return read() if steps.new_sids else sids


def why_no_sid(data: DataFolder) -> str:
    """Return the reason to refuse an ad without a SID."""
    tables = [sid_table_at(each) for each in (data.given_sids, data.sids) if each is not None]
    if not tables:
        return ""
    if _codebook(data) is None:
        remedy = "; add it there"
    elif data.embeddings is None:
        remedy = "; name the table of vectors as `embeddings` in tables.yaml, and build again"
    else:
        remedy = (
            f", and no usable vector in {', '.join(data.embeddings.files)}; add one there: finite "
            "numbers, as many as the codebook needs, in one row"
        )
    return f"the ad has no SID in {' or '.join(tables)}{remedy}"


def _codebook(data: DataFolder) -> Path | None:
    """Return the folder of the codebook; None if no codebook extends the SIDs."""
    folder = local_folder(data.sids)
    return folder if folder is not None and (folder / CODEBOOK_YAML).is_file() else None


def _worse(new: SidReport, facts: CodebookFacts) -> str | None:
    """Return how badly a codebook captures the vectors of new ads; few ads say little."""
    error, before = new.levels[-1].error, facts.errors[-1]
    if new.items < _ENOUGH_NEW or error <= _MOST_ERROR * before:
        return None
    return (
        f"its error on {new.items:,} new ads is {error:.1%}, and it was {before:.1%} when it was "
        "made: if you sell other kinds of items now, make a new codebook and train a model on its "
        "SIDs"
    )


def _with_one_vector(items: Items, wanted: pa.Array) -> Items | None:
    """Return those of the wanted items that are in one row; None if there are none."""
    found = [ids for ids, _ in replace(items, wanted=wanted).batches()]
    if not found:
        return None
    counts = pa.concat_arrays(found).value_counts()
    once = counts.field("values").filter(pc.equal(counts.field("counts"), 1))
    return replace(items, wanted=once.cast(pa.large_string())) if len(once) else None


def _ads_without_sid(
    ads: AdsSource, names: IdMap | None, sids: ItemSids, advance: Advance
) -> pa.Array:
    """Return the ids of these ads as text."""
    found, done = [pa.array([], pa.large_string())], 0
    for file in ads.files:
        column = {"ad_id": file.theirs["ad_id"]}
        for rows in read_rows(file.table, column, "ad_id", _BATCH_ROWS):
            numbers = rows.ids("ad_id", names, null=None, strict=False)
            absent = pa.array((numbers >= 0) & (sids.places(numbers) < 0))
            shown = pa.array(numbers) if names is None else rows.given("ad_id")
            found.append(shown.filter(absent).cast(pa.large_string()))
            done += len(rows)
            advance(done)
    return pa.concat_arrays(found)


def read_item_sids(
    table: TableFile, names: IdMap | None, vocab_sizes: tuple[int, ...], advance: Advance
) -> ItemSids:
    """`names` numbers the ads; without it their ids are integers."""
    size, sizes = table.count_rows(), np.array(vocab_sizes)
    numbers = np.empty(size, np.int64)
    tokens = np.empty((size, len(sizes)), np.uint16)
    row, kept = 0, 0
    for rows in read_rows(table, COLUMNS, "item_id", _BATCH_ROWS):
        # An item that the ads' ids cannot name belongs to no ad.
        found = rows.ids("item_id", names, strict=False)
        of_rows = rows.sids("sid", len(sizes), sizes)
        rows.require_good("item")
        known = found >= 0
        end = kept + int(known.sum())
        numbers[kept:end], tokens[kept:end] = found[known], of_rows[known]
        row, kept = row + len(rows), end
        advance(row)
    if row == 0:
        raise InputError(f"{table.address}: has no items")
    numbers, tokens = numbers[:kept], tokens[:kept]
    if not (numbers[1:] > numbers[:-1]).all():
        order = np.argsort(numbers)
        numbers = numbers[order]
        tokens = tokens[order]
        again = np.flatnonzero(numbers[1:] == numbers[:-1])
        if len(again):
            raise InputError(
                f"{table.address}: the item of ad {numbers[again[0]]} has two SIDs; keep one row "
                "per item_id"
            )
    return ItemSids(numbers, tokens)
