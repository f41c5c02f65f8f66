"""A catalogue as a folder: `ads.parquet`, `targeting.yaml` and `requests.jsonl`.

A spec with users to log adds `interactions.parquet`.
"""

from dataclasses import dataclass
from pathlib import Path

from grace.catalogues.synth.ads_file import Progress, write_ads
from grace.catalogues.synth.catalogue import make_catalogue
from grace.catalogues.synth.log_file import write_log
from grace.catalogues.synth.requests_file import write_requests
from grace.catalogues.synth.schema import targeting_yaml
from grace.catalogues.synth.spec import CatalogueSpec
from grace.configs.errors import InputError

__all__ = [
    "ADS_FILE",
    "LOG_FILE",
    "REQUESTS_FILE",
    "TARGETING_FILE",
    "Written",
    "require_room",
    "write_folder",
]

ADS_FILE = "ads.parquet"
TARGETING_FILE = "targeting.yaml"
REQUESTS_FILE = "requests.jsonl"
LOG_FILE = "interactions.parquet"
_FILES = (TARGETING_FILE, REQUESTS_FILE, LOG_FILE, ADS_FILE)


@dataclass(frozen=True, slots=True)
class Written:
    """What a folder holds now."""

    sid_space: str
    sids: int
    ads: int
    campaigns: int
    distinct_rules: int
    requests: int
    interactions: int
    bytes: int


def require_room(out: Path, *, force: bool) -> None:
    """Refuses, before anything is made, what `write_folder` would refuse."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder")
    taken = [name for name in _FILES if (out / name).exists()]
    if taken and not force:
        raise InputError(f"--out {out} already holds {', '.join(taken)}; use --force to replace")


def write_folder(
    spec: CatalogueSpec, out: Path, *, force: bool = False, progress: Progress | None = None
) -> Written:
    """Makes the catalogue and its files; each appears whole or not at all."""
    require_room(out, force=force)
    catalogue = make_catalogue(spec)
    try:
        out.mkdir(parents=True, exist_ok=True)
        partial = {name: out / f".{name}.partial" for name in _FILES}
        try:
            partial[TARGETING_FILE].write_text(targeting_yaml(), encoding="utf-8")
            requests = write_requests(catalogue, partial[REQUESTS_FILE])
            interactions = write_log(catalogue, partial[LOG_FILE]) if spec.log_users else 0
            write_ads(catalogue, partial[ADS_FILE], progress)
            if not spec.log_users:
                (out / LOG_FILE).unlink(missing_ok=True)  # another catalogue's
            written = [name for name in _FILES if partial[name].exists()]
            for name in written:
                partial[name].replace(out / name)
        finally:
            for path in partial.values():
                path.unlink(missing_ok=True)
        size = sum((out / name).stat().st_size for name in written)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror or error}") from error
    return Written(
        sid_space=spec.sid_space,
        sids=catalogue.num_sids,
        ads=catalogue.num_ads,
        campaigns=len(catalogue.campaigns),
        distinct_rules=catalogue.campaigns.distinct_rules(),
        requests=requests,
        interactions=interactions,
        bytes=size,
    )
