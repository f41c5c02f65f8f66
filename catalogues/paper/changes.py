"""Changes of the catalogue's ads, as ads teams make them: new ads, replaced and removed ones."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.catalogues.arrays import Int64Array
from grace.catalogues.folder import sid_column
from grace.catalogues.paper.catalogue import PaperCatalogue
from grace.catalogues.paper.files import ads_table
from grace.catalogues.paper.population import LOCATION, location_name
from grace.catalogues.paper.spec import SID_LENGTH, VOCAB

_MOST_ADS = 1 << 20  # of a change
_NEW, _NEW_SID, _REPLACED, _REMOVED = range(4)
_SHARES = (0.4, 0.2, 0.2, 0.2)


@dataclass(frozen=True, slots=True)
class PaperChange:
    """
    puts     rows of an ads table
    removed  int64 [n]   ad ids
    """

    puts: pa.Table
    removed: Int64Array

    def rows(self) -> list[dict[str, Any]]:
        """Return the puts as rows of JSON. A column without a rule is absent."""
        return [
            {name: value for name, value in row.items() if value is not None}
            for row in self.puts.to_pylist()
        ]


class PaperChanges:
    """Change N is the same on every call, whatever changed before: it is drawn from the catalogue.

    New ads have SIDs of the catalogue, or others under its two-token prefixes. These belong to a new
    campaign, whose locations are new combinations. A replaced ad gets the row of another one.
    """

    def __init__(self, catalogue: PaperCatalogue) -> None:
        self._catalogue, self._table = catalogue, ads_table(catalogue)

    def change(self, number: int, size: int) -> PaperChange:
        """Return a change of `size` different ads: half of the catalogue's at most."""
        catalogue = self._catalogue
        rng = np.random.default_rng((catalogue.spec.seed, number))
        drawn = rng.choice(catalogue.num_ads, 2 * size, replace=False)
        ids = catalogue.rows(np.sort(drawn[size:])).ids
        kinds = rng.choice(len(_SHARES), size, p=_SHARES)
        new = np.flatnonzero(kinds <= _NEW_SID)
        ids[new] = catalogue.id_bound + number * _MOST_ADS + new
        table = self._table(np.sort(drawn[:size]))
        columns = dict(zip(table.column_names, table.columns, strict=True))
        tokens = columns["sid"].combine_chunks().flatten().to_numpy().reshape(size, SID_LENGTH)
        elsewhere = kinds == _NEW_SID
        ends = rng.integers(VOCAB, size=(size, 2), dtype=np.uint16)
        ends = np.where(elsewhere[:, np.newaxis], ends, tokens[:, 2:])
        places = rng.integers(catalogue.spec.knobs.locations, size=(size, 3)).tolist()
        lists = columns[LOCATION].to_pylist()
        for row in np.flatnonzero(elsewhere).tolist():
            lists[row] = list(map(location_name, dict.fromkeys(places[row])))
        columns |= {
            "ad_id": pa.array(ids),
            "sid": sid_column(np.concatenate([tokens[:, :2], ends], axis=1)),
            LOCATION: pa.array(lists, columns[LOCATION].type),
            "campaign": pc.if_else(elsewhere, catalogue.id_bound + number, columns["campaign"]),
        }
        stays = kinds != _REMOVED
        return PaperChange(pa.table(columns).filter(stays), ids[~stays])
