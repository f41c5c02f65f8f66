"""The catalogue as a folder: `ads.parquet`, `targeting.yaml` and `requests.jsonl`."""

import json
from dataclasses import dataclass
from pathlib import Path

from grace.catalogues.paper.ads_file import Progress, write_ads
from grace.catalogues.paper.catalogue import PaperCatalogue, make_paper_catalogue
from grace.catalogues.paper.schema import targeting_yaml
from grace.catalogues.paper.spec import PaperSpec
from grace.catalogues.paper.users import make_users
from grace.catalogues.synth.folder import ADS_FILE, LOG_FILE, REQUESTS_FILE, TARGETING_FILE
from grace.configs.errors import InputError

__all__ = ["PaperWritten", "write_paper_folder"]

REQUESTS = 64
MAX_ADS = 1000
_FILES = (TARGETING_FILE, REQUESTS_FILE, ADS_FILE)


@dataclass(frozen=True, slots=True)
class PaperWritten:
    """What a folder holds now."""

    sid_space: str
    sids: int
    ads: int
    requests: int
    bytes: int


def write_paper_folder(
    spec: PaperSpec, out: Path, *, threads: int, force: bool, progress: Progress
) -> PaperWritten:
    """Each file appears whole or not at all, the ads last."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder")
    taken = [name for name in (*_FILES, LOG_FILE) if (out / name).exists()]
    if taken and not force:
        raise InputError(f"--out {out} already holds {', '.join(taken)}; use --force to replace")
    catalogue = make_paper_catalogue(spec, threads)
    partial = {name: out / f".{name}.partial" for name in _FILES}
    try:
        out.mkdir(parents=True, exist_ok=True)
        try:
            partial[TARGETING_FILE].write_text(targeting_yaml(catalogue.schema), encoding="utf-8")
            partial[REQUESTS_FILE].write_text(_requests(catalogue), encoding="utf-8")
            write_ads(catalogue, partial[ADS_FILE], threads, progress)
            (out / LOG_FILE).unlink(missing_ok=True)  # another catalogue's
            for name in _FILES:
                partial[name].replace(out / name)
        finally:
            for path in partial.values():
                path.unlink(missing_ok=True)
        size = sum((out / name).stat().st_size for name in _FILES)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror or error}") from error
    return PaperWritten(spec.sid_space, spec.num_sids, catalogue.num_ads, REQUESTS, size)


def _requests(catalogue: PaperCatalogue) -> str:
    """Users in the JSON form of the Retrieve API, without features: they need no certain model."""
    lines = []
    for number, user in enumerate(make_users(REQUESTS, catalogue.draws, catalogue.spec.knobs)):
        request = {
            "request_id": f"u{number:03}",
            "sid_space": catalogue.spec.sid_space,
            "user": {name: {"values": values} for name, values in user.items()},
            "max_ads": MAX_ADS,
        }
        lines.append(json.dumps(request))
    return "".join(f"{line}\n" for line in lines)
