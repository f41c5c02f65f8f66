"""A data folder: `targeting.yaml`, and the tables or a `tables.yaml` that says where they are.

    ads:
      files: [../raw/ads.csv]      # files, folders or URLs, relative to this file
      list_separator: "|"          # how a text lists several values
      columns: {ad_id: sku, country: Country Code}   # ours: theirs; others have our name
      ignore: [embedding]          # columns that look like rules but are not
      time_unit: s                 # unit of integer times: s, ms (default), us or ns
    sids: codebook                 # of `grace sids`, or a table of item_id and sid
    id_map: ids.parquet            # numbers ads whose ids are not integers
    entity_ids: {brand: brands.parquet}  # numbers entities whose ids are not integers
    embeddings:                    # vectors, by which new ads get their SIDs
      files: [../raw/items.parquet]
      columns: {item_id: sku, vector: embedding}
    log:
      files: [../raw/clicks.csv]
      columns: {user_id: uid, ad_id: item, timestamp_ms: ts}
      time_unit: s

Without `tables.yaml` the tables are `ads.parquet` and, if there is a log, `interactions.parquet`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grace.configs.errors import ConfigError, InputError
from grace.configs.sections import load_section
from grace.configs.yaml_loader import read_yaml
from grace.index.tables.addresses import ending_format, is_url, within
from grace.index.tables.cells import TIME_UNITS
from grace.index.tables.table_file import TableFile, table_files

TABLES_FILE = "tables.yaml"
TARGETING_FILE = "targeting.yaml"
ADS_FILE = "ads.parquet"
LOG_FILE = "interactions.parquet"
REQUESTS_FILE = "requests.jsonl"
SIDS_FILE = "sids.parquet"
SID_SPACE_KEY, VOCAB_SIZES_KEY = b"grace.sid_space", b"grace.vocab_sizes"  # Parquet metadata

FIRST_SECOND, LAST_SECOND = 631_152_000, 4_102_444_800  # a log's times: from 1990 to 2100


@dataclass(frozen=True, slots=True)
class TableSource:
    files: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=dict)  # ours: theirs
    list_separator: str | None = None
    ignore: tuple[str, ...] = ()  # columns that look like rules but are not
    time_unit: str = "ms"  # of integer times since 1970: of a log, and of the flights of ads

    def __post_init__(self) -> None:
        if self.time_unit not in TIME_UNITS:
            raise ConfigError(f"time_unit: {self.time_unit!r}; give one of {', '.join(TIME_UNITS)}")
        if self.list_separator == "":
            raise ConfigError("list_separator: empty; give the text between values, such as |")
        for ours, theirs in self.columns.items():
            if not theirs:
                raise ConfigError(f"columns: {ours} has no name; give that of the table's column")

    def theirs(self, name: str) -> str:
        return self.columns.get(name, name)

    def found_from(self, folder: Path) -> "TableSource":
        """Return the source whose addresses are relative to this folder."""
        return replace(self, files=tuple(within(folder, file) for file in self.files))

    def tables(self) -> list[TableFile]:
        found = table_files(self.files, self.list_separator) if self.files else []
        return [replace(file, time_unit=self.time_unit) for file in found]


def local_folder(sids: str | None) -> Path | None:
    """Return the folder of the codebook that `sids` names; None for a table of SIDs or a URL."""
    return None if sids is None or is_url(sids) or ending_format(sids) else Path(sids)


@dataclass(frozen=True, slots=True)
class DataFolder:
    folder: Path
    ads: TableSource
    sids: str | None = None  # the address of a codebook's folder or of a table of SIDs
    id_map: Path | None = None
    entity_ids: Mapping[str, Path] = field(default_factory=dict)  # id maps, by entity
    embeddings: TableSource | None = None
    log: TableSource | None = None
    given_sids: str | None = None  # a table of SIDs, which take precedence over `sids`
    catalogue: "DataFolder | None" = None  # the folder of all ads, if `ads` are some of them

    @property
    def targeting(self) -> Path:
        return self.folder / TARGETING_FILE

    def of_ads_in(self, files: Sequence[str], sids: str | None = None) -> "DataFolder":
        """Return the folder of these tables of some of its ads.

        If all tables have SIDs, these count. Otherwise SIDs come from `sids`, and from the folder
        for ads that it lacks.
        """
        ads = replace(self.ads, files=tuple(files))
        found = replace(self, ads=ads, catalogue=self)
        if all(ads.theirs("sid") in each.schema.names for each in ads.tables()):
            return replace(found, sids=None)
        return replace(found, given_sids=sids)

    def require_codebook(self) -> None:
        """Refuse a codebook that `tables.yaml` names before `grace sids` has made it."""
        folder = local_folder(self.sids)
        if folder is not None and not (table := folder / SIDS_FILE).exists():
            given = f"--embeddings EMBEDDINGS.parquet --out {self.sids}"
            raise InputError(
                f"{table}: no such file, but {self.folder / TABLES_FILE} names its folder as "
                f"`sids`: run `grace sids {f'--data {self.folder}' if self.embeddings else given}` "
                "first"
            )


@dataclass(frozen=True, slots=True)
class _TablesSection:
    ads: TableSource
    sids: str | None = None
    id_map: str | None = None
    entity_ids: Mapping[str, str] = field(default_factory=dict)
    embeddings: TableSource | None = None
    log: TableSource | None = None

    def __post_init__(self) -> None:
        sources = {"ads": self.ads, "embeddings": self.embeddings, "log": self.log}
        for name, source in sources.items():
            if source is not None and not source.files:
                raise ConfigError(f"{name}.files: name at least one file, folder or URL")
        if "ad_id" in self.entity_ids:
            raise ConfigError("entity_ids: ad_id: not an entity; name the id map of ads as id_map")
        maps = {f"entity_ids: {name}": file for name, file in self.entity_ids.items()}
        for key, file in (("id_map", self.id_map), *maps.items()):
            if file is not None and is_url(file):
                raise ConfigError(
                    f"{key}: {file} is a URL, but a build locks the map; name a local file"
                )


def read_data_folder(folder: Path) -> DataFolder:
    tables = folder / TABLES_FILE
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder; `grace init --ads TABLE --out {folder}` makes it"
        )
    if tables.exists():
        section = load_section(_TablesSection, read_yaml(tables), str(tables))
        return DataFolder(
            folder,
            section.ads.found_from(folder),
            sids=None if section.sids is None else within(folder, section.sids),
            id_map=None if section.id_map is None else folder / section.id_map,
            entity_ids={name: folder / file for name, file in section.entity_ids.items()},
            embeddings=section.embeddings and section.embeddings.found_from(folder),
            log=section.log and section.log.found_from(folder),
        )
    if not (folder / ADS_FILE).exists():
        raise InputError(
            f"{folder}: has neither {TABLES_FILE} nor {ADS_FILE}, so it is no data folder; "
            f"`grace init --ads TABLE --out {folder}` makes one of a table"
        )
    log = folder / LOG_FILE
    found = TableSource((str(log),)) if log.exists() else None
    return DataFolder(folder, TableSource((str(folder / ADS_FILE),)), log=found)
