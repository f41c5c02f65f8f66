"""Synthetic catalogues that a person can read: consistent ads, targeting rules and users.

    spec = preset_spec(Preset.TINY, seed=7)     # or your own CatalogueSpec
    catalogue = make_catalogue(spec)            # in memory, read-only arrays
    write_folder(spec, Path("catalogue"))       # the files that `grace build` and training read

The first token of a SID is a topic, the second a brand, the third a product line. Targeting follows
the hierarchy: ads below one three-token prefix mostly share a campaign, and so its rules.
`TargetingKnobs` decides what campaigns hold. Equal specs give equal bytes.
"""

from grace.catalogues.synth.catalogue import Catalogue, make_catalogue
from grace.catalogues.synth.files import write_folder
from grace.catalogues.synth.raw_files import write_raw_folder
from grace.catalogues.synth.spec import CatalogueSpec, Preset, TargetingKnobs, preset_spec
from grace.catalogues.synth.users import make_requests, make_users

__all__ = [
    "Catalogue",
    "CatalogueSpec",
    "Preset",
    "TargetingKnobs",
    "make_catalogue",
    "make_requests",
    "make_users",
    "preset_spec",
    "write_folder",
    "write_raw_folder",
]
