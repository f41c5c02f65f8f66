"""A synthetic catalogue with the statistics of the paper's: 30 million SIDs, 50 million ads.

    `grace synth --preset paper --sids 300000 --out catalogue`      # as files, or as arrays:
    catalogue = make_paper_catalogue(paper_spec(sids=300_000, seed=1), threads=2)
    arranged = arranged_ads(catalogue, threads=2)
    snapshot = snapshot_of(catalogue, arranged, MatcherMode.UNION, threads=2)

Each draw of a prefix, campaign or ad is a function of the seed and its own number (draws.py), so
both ways give the same snapshot. `PaperKnobs` states every number and its reason. Users, and the
generator that stands in for a model, belong to the catalogue.
"""

from grace.catalogues.paper.catalogue import PaperCatalogue, make_paper_catalogue
from grace.catalogues.paper.draws import Draws
from grace.catalogues.paper.files import PaperWritten, write_paper_folder
from grace.catalogues.paper.generator import (
    Generator,
    GeneratorKnobs,
    admit_for,
    every_entry,
    generator_of,
)
from grace.catalogues.paper.population import make_users
from grace.catalogues.paper.snapshots import arranged_ads, decode_snapshot, snapshot_of
from grace.catalogues.paper.spec import PAPER_SIDS, PaperKnobs, PaperSpec, paper_spec

__all__ = [
    "PAPER_SIDS",
    "Draws",
    "Generator",
    "GeneratorKnobs",
    "PaperCatalogue",
    "PaperKnobs",
    "PaperSpec",
    "PaperWritten",
    "admit_for",
    "arranged_ads",
    "decode_snapshot",
    "every_entry",
    "generator_of",
    "make_paper_catalogue",
    "make_users",
    "paper_spec",
    "snapshot_of",
    "write_paper_folder",
]
