"""Stream the ads table: one batch of rows at a time, the next one decoded on another thread."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from grace.configs.errors import InputError
from grace.index.builder.columns import list_column
from grace.index.builder.item_sids import ItemSids
from grace.index.builder.source import ENTITY_MAP, AdsSource
from grace.index.entities import NO_ENTITY
from grace.index.forms.component import Codes, ListColumn
from grace.index.forms.components import components_of
from grace.index.forms.lists import ValueCodes
from grace.index.rejects import Reject
from grace.index.tables.cells import list_parts
from grace.index.tables.item_numbers import IdMap
from grace.index.tables.rows import UNKNOWN, Rows, read_rows
from grace.index.targeting.schema import EXCLUDE_SUFFIX, TargetingSchema

BATCH_ROWS = 1 << 17

_NUMBERED = "; id_map in tables.yaml numbers such ads"
_ENTITY_NUMBERED = f"; {ENTITY_MAP}"


@dataclass(frozen=True, slots=True)
class AdsBatch:
    """
    ad_ids int64 [rows], negative where refused; tokens uint16 [rows, L]; weights float32 [rows]
    entity_ids: int64 [rows] of every entity, NO_ENTITY where the ad belongs to none
    rules: include and exclude of every attribute, then of every set; None for an absent column
    """

    rows: Rows
    ad_ids: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.uint16]
    weights: npt.NDArray[np.float32]
    entity_ids: tuple[npt.NDArray[np.int64], ...]
    rules: tuple[ListColumn | None, ...]
    rejects: tuple[Reject, ...]  # at most one per row
    refused: npt.NDArray[np.bool_]  # [rows]


@dataclass(frozen=True, slots=True)
class AdsReading:
    """The parts that turn the rows of an ads table into ads."""

    schema: TargetingSchema
    vocab_sizes: tuple[int, ...]
    names: Mapping[str, IdMap] = field(default_factory=dict)  # id maps by column
    sids: ItemSids | None = None  # None: the table has a column sid
    batch_rows: int = BATCH_ROWS


class BatchReader:
    """Iterating yields AdsBatch in file order.

    `code_of` has the codes of each column of rules, `stated` the columns in which some row so far
    has a rule, or an entity.
    """

    def __init__(self, source: AdsSource, reading: AdsReading) -> None:
        schema = reading.schema
        self._source = source
        self._reading = reading
        self._vocab_sizes = np.array(reading.vocab_sizes, np.int64)
        self.stated: set[str] = set()
        codes = [codes for each in components_of(schema) for codes in each.codes()]
        both = [of_name for of_name in codes for _ in ("include", "exclude")]
        self.code_of: dict[str, Codes] = dict(zip(schema.rule_columns, both, strict=True))

    def values(self) -> tuple[Sequence[str], ...]:
        """Return the values read so far, for each component that interns values."""
        codes = dict.fromkeys(self.code_of.values())
        return tuple(each.strings() for each in codes if isinstance(each, ValueCodes))

    def __iter__(self) -> Iterator[AdsBatch]:
        """Decoding runs one batch ahead; its failure is raised here."""
        batches = self._batches()
        with ThreadPoolExecutor(1, thread_name_prefix="grace-read-ads") as ahead:
            future = ahead.submit(next, batches, None)
            while (batch := future.result()) is not None:
                future = ahead.submit(next, batches, None)
                yield batch

    def _batches(self) -> Iterator[AdsBatch]:
        for file in self._source.files:
            read = 0
            for rows in read_rows(file.table, file.theirs, "ad_id", self._reading.batch_rows):
                read += len(rows)
                if read > file.rows:
                    raise InputError(f"{file.address}: grew while it was read")
                yield self._decode(rows)
            if read != file.rows:
                raise InputError(
                    f"{file.address}: {read} rows read, it had {file.rows} before: leave it as it "
                    "is during the build"
                )

    def _decode(self, rows: Rows) -> AdsBatch:
        reading = self._reading
        if rows.places[0] == 0 and reading.sids is None:
            self._check_sid_length(rows)
        ad_ids = self._ids(rows, "ad_id", "is null", _NUMBERED)
        if reading.sids is None:
            tokens = rows.sids("sid", len(self._vocab_sizes), self._vocab_sizes).astype(np.uint16)
        else:
            tokens = _joined_tokens(rows, ad_ids, reading.sids)
        weights = rows.weights("ad_weight")
        entity_ids = tuple(
            self._ids(rows, name, None, _ENTITY_NUMBERED)
            if name in rows.theirs
            else np.full(len(rows), NO_ENTITY)
            for name in reading.schema.entities
        )
        rules = tuple(
            list_column(rows.rules(name), code_of) if name in rows.theirs else None
            for name, code_of in self.code_of.items()
        )
        self._note_stated(rules, entity_ids)
        return AdsBatch(
            rows=rows,
            ad_ids=ad_ids,
            tokens=tokens,
            weights=weights,
            entity_ids=entity_ids,
            rules=rules,
            rejects=rows.rejects(),
            refused=rows.refused(),
        )

    def _ids(self, rows: Rows, name: str, null: str | None, remedy: str) -> npt.NDArray[np.int64]:
        ids = rows.ids(name, self._reading.names.get(name), null=null, remedy=remedy)
        unknown = (ids == UNKNOWN) & ~rows.refused()
        for row in np.flatnonzero(unknown)[:1].tolist():
            shown = f"{rows.file.address}: {name} {rows.shown(name, row)}"
            raise InputError(f"{shown} was added while it was read")
        return ids

    def _note_stated(
        self,
        rules: Sequence[ListColumn | None],
        entity_ids: Sequence[npt.NDArray[np.int64]],
    ) -> None:
        for column, rule in zip(self.code_of, rules, strict=True):
            if rule is None or column in self.stated:
                continue
            stated = rule.valid == 1
            if column.endswith(EXCLUDE_SUFFIX):  # an empty exclude list is no rule
                stated &= np.diff(rule.offsets) > 0
            if stated.any():
                self.stated.add(column)
        for name, ids in zip(self._reading.schema.entities, entity_ids, strict=True):
            if name not in self.stated and (ids != NO_ENTITY).any():
                self.stated.add(name)

    def _check_sid_length(self, rows: Rows) -> None:
        """If all SIDs have another length, then the option is wrong and not the ads."""
        parts = list_parts(rows.lists("sid"))
        found = np.unique(np.diff(parts.offsets)[parts.valid == 1])
        if len(found) == 1 and 0 < found[0] != len(self._vocab_sizes) and len(rows) > 1:
            sizes = ",".join(map(str, self._vocab_sizes.tolist()))
            raise InputError(
                f"--vocab-sizes {sizes}: {len(self._vocab_sizes)} tokens, but the SIDs of "
                f"{rows.file.address} have {found[0]}: give one size per token, there or as "
                "grace.vocab_sizes in the file's metadata"
            )


def _joined_tokens(
    rows: Rows, ad_ids: npt.NDArray[np.int64], sids: ItemSids
) -> npt.NDArray[np.uint16]:
    places = sids.places(ad_ids)
    for row in np.flatnonzero((places < 0) & ~rows.refused()).tolist():
        rows.refuse(row, "sid", rows.shown("ad_id", row), sids.absent)
    if len(sids.tokens) == 0:
        return np.zeros((len(ad_ids), sids.tokens.shape[1]), np.uint16)
    tokens: npt.NDArray[np.uint16] = sids.tokens[np.maximum(places, 0)]
    return tokens
