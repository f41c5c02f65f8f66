"""A catalogue's folder: `ads.parquet`, `targeting.yaml`, `requests.jsonl`, `interactions.parquet`.

The last one is the log of interactions that training reads; not every catalogue has one.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from grace.catalogues.arrays import UInt16Array
from grace.configs.errors import InputError
from grace.index.tables.data_folder import ADS_FILE, LOG_FILE, REQUESTS_FILE, TARGETING_FILE
from grace.index.targeting.schema import KINDS, TargetingSchema

_FILES = (TARGETING_FILE, REQUESTS_FILE, LOG_FILE, ADS_FILE)

Progress = Callable[[int, int], None]  # (ads written, ads in all)
WriteFile = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Written:
    """The numbers of a folder's contents."""

    sid_space: str
    sids: int
    ads: int
    requests: int
    interactions: int
    bytes: int


def require_room(out: Path, names: Sequence[str] = _FILES, *, force: bool) -> None:
    """Refuse a folder with files of these names, before anything is made."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder")
    taken = [name for name in names if (out / name).exists()]
    if taken and not force:
        raise InputError(f"--out {out} already holds {', '.join(taken)}; use --force to replace")


def write_files(
    out: Path,
    targeting: str,
    requests: Iterable[Mapping[str, Any]],
    write_ads: WriteFile,
    write_log: WriteFile | None = None,
) -> int:
    """Write the files of a catalogue. The log of an earlier catalogue is removed."""
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in requests)
    writers: dict[str, WriteFile] = {
        TARGETING_FILE: lambda path: path.write_text(targeting, encoding="utf-8"),
        REQUESTS_FILE: lambda path: path.write_text(lines, encoding="utf-8"),
        **({} if write_log is None else {LOG_FILE: write_log}),
        ADS_FILE: write_ads,
    }
    return write_tables(out, writers, () if write_log is not None else (LOG_FILE,))


def write_tables(out: Path, writers: Mapping[str, WriteFile], removed: Sequence[str] = ()) -> int:
    """Write files by name, and return their size in bytes.

    removed  files of an earlier catalogue that this one does not have
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in removed:
            (out / name).unlink(missing_ok=True)
        for name, write in writers.items():
            write(out / name)
        return sum((out / name).stat().st_size for name in writers)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror or error}") from error


def targeting_yaml(schema: TargetingSchema) -> str:
    """Return the schema as a file. Quotes keep the country code NO from becoming a truth value."""
    document = asdict(schema)
    for kind in KINDS:
        document[kind] = {
            each.pop("name"): {
                key: value
                for key, value in each.items()
                if value not in (None, False) and not (key == "values" and each["clock"])
            }
            for each in document[kind]
        }
    document = {key: value for key, value in document.items() if value not in ({}, ())}
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True)


def sid_column(sids: UInt16Array) -> pa.ListArray:
    """[rows, tokens] -> a Parquet column of lists."""
    offsets = np.arange(0, sids.size + 1, sids.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(sids.reshape(-1)))


def sid_metadata(sid_space: str, vocab_sizes: Sequence[int]) -> dict[str, str]:
    """What a Parquet file says of its SIDs."""
    return {"grace.sid_space": sid_space, "grace.vocab_sizes": ",".join(map(str, vocab_sizes))}
