"""Synthetic catalogues that a person can read: ads, targeting and users that hang together.

    spec = preset_spec(Preset.TINY, seed=7)             # or a CatalogueSpec of your own
    catalogue = make_catalogue(spec)                    # in memory, read-only arrays
    write_folder(spec, Path("catalogue"))               # the three files that `grace build` reads

The first token of a SID is a topic, the second a brand, the third a product line. Targeting follows
the hierarchy: ads below one three-token prefix mostly share a campaign, and so its rules. What the
campaigns hold is decided by `TargetingKnobs`; equal specs give equal bytes.
"""

from grace.catalogues.synth.catalogue import Catalogue, make_catalogue
from grace.catalogues.synth.folder import Written, require_room, write_folder
from grace.catalogues.synth.requests_file import make_requests
from grace.catalogues.synth.schema import targeting_yaml
from grace.catalogues.synth.spec import CatalogueSpec, Preset, TargetingKnobs, preset_spec

__all__ = [
    "Catalogue",
    "CatalogueSpec",
    "Preset",
    "TargetingKnobs",
    "Written",
    "make_catalogue",
    "make_requests",
    "preset_spec",
    "require_room",
    "targeting_yaml",
    "write_folder",
]
