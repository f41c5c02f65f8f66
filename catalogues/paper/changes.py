"""Changes of the catalogue's ads, as ads teams make them: new ads, replaced and removed ones."""

from typing import Any, NamedTuple

import numpy as np

from grace.catalogues.paper.catalogue import PaperCatalogue
from grace.catalogues.paper.files import ads_table
from grace.catalogues.paper.population import LOCATION, location_name
from grace.catalogues.paper.spec import VOCAB

_NEW, _NEW_SID, _REPLACED, _REMOVED = range(4)
_SHARES = (0.4, 0.2, 0.2, 0.2)
_MOST_ADS = 1 << 20  # of a change


class PaperChange(NamedTuple):
    """Rows of an ads table, as JSON has them, and ids of ads."""

    puts: list[dict[str, Any]]
    removed: list[int]


class PaperChanges:
    """Change N is the same on every call, whatever changed before: it is drawn from the catalogue.

    New ads have SIDs of the catalogue, or others under its two-token prefixes. The latter belong to
    a new campaign, with new lists of locations. A replaced ad gets the row of another one.
    """

    def __init__(self, catalogue: PaperCatalogue) -> None:
        self._catalogue, self._table = catalogue, ads_table(catalogue)

    def change(self, number: int, ads: int) -> PaperChange:
        """Return a change of different ads: half of the catalogue's at most."""
        catalogue = self._catalogue
        rng = np.random.default_rng((catalogue.spec.seed, number))
        drawn = rng.choice(catalogue.num_ads, 2 * ads, replace=False)
        rows = self._table(np.sort(drawn[:ads])).to_pylist()
        others = catalogue.rows(np.sort(drawn[ads:])).ids.tolist()
        kinds = rng.choice(len(_SHARES), ads, p=_SHARES).tolist()
        change, first = PaperChange([], []), catalogue.id_bound + number * _MOST_ADS
        for place, (row, other, kind) in enumerate(zip(rows, others, kinds, strict=True)):
            if kind == _REMOVED:
                change.removed.append(other)
                continue
            row["ad_id"] = other if kind == _REPLACED else first + place
            if kind == _NEW_SID:
                places = {*rng.integers(catalogue.spec.knobs.locations, size=3).tolist()}
                row[LOCATION] = [location_name(each) for each in sorted(places)]
                row["sid"][2:] = rng.integers(VOCAB, size=2).tolist()
                row["campaign"] = first
            change.puts.append({name: value for name, value in row.items() if value is not None})
        return change
