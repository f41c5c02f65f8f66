"""A server's configuration file."""

import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from grace.bench.markdown import replaced
from grace.bench.reference_tables import settings_tables
from grace.configs.errors import ConfigError
from grace.configs.options import Fp8Product, Option, declaration
from grace.configs.serving import ServingConfig, load_serving_config
from grace.model.checkpoints.init import load_model_config

GENERATION = {"max_batch": 3, "profiles": {"full": {"beams": [1, 7], "num_sids": 5}}}
LEAST: dict[str, Any] = {"snapshots": "s", "checkpoint": "c", "generation": GENERATION}


def load(tmp_path: Path, values: dict[str, Any], **folders: Path) -> ServingConfig:
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(values))
    return load_serving_config(path, **folders)


def test_folders_of_the_command_line_replace_the_folders_of_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST, snapshots=Path("mine"), state_dir=Path("kept"))
    folders = (config.snapshots, config.checkpoint, config.state_dir)
    assert folders == (Path("mine"), Path("c"), Path("kept"))


def test_a_missing_folder_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing key 'checkpoint'; add it, or give --check"):
        load(tmp_path, {"generation": GENERATION}, snapshots=Path("mine"))
    with pytest.raises(ConfigError, match=r"^the defaults: missing key .*; give --checkpoint$"):
        load_serving_config(None, Path("s"))


def with_vocabulary(tmp_path: Path, *sizes: int) -> Path:
    (tmp_path / "model.yaml").write_text(yaml.safe_dump({"vocab_sizes": list(sizes)}))
    return tmp_path


def test_two_folders_are_enough_and_mean_the_shipped_file(tmp_path: Path, repository: Path) -> None:
    folders = Path("s"), with_vocabulary(tmp_path, 64, 64, 64, 64)
    shipped = load_serving_config(repository / "configs" / "serve.yaml", *folders)
    assert load_serving_config(None, *folders) == shipped


def test_the_default_beams_fit_the_checkpoint(tmp_path: Path) -> None:
    config = load_serving_config(None, Path("s"), with_vocabulary(tmp_path, 7, 3, 512))
    beams = {name: (x.beams, x.num_sids) for name, x in config.generation.profiles.items()}
    assert beams == {"full": ((1, 7, 21), 64), "reduced": ((1, 7, 16), 16)}
    config.generation.require_vocabulary((7, 3, 512))


def test_the_h200_configuration_has_the_beams_of_the_paper(repository: Path) -> None:
    folder = repository / "configs"
    config = load_serving_config(folder / "serve-h200.yaml", Path("s"), Path("c"))
    assert config.generation == load_model_config(folder / "paper.yaml").generation


def numbers(section: type, path: str = "") -> Iterator[tuple[str, Option]]:
    """Yield each setting that is a number, with its path."""
    for name, hint in get_type_hints(section, include_extras=True).items():
        type_, declared = declaration(hint)
        if is_dataclass(type_) and isinstance(type_, type):
            yield from numbers(type_, f"{path}{name}.")
        elif type_ in (int, float):
            yield f"{path}{name}", declared


def changed(path: str, value: Any) -> dict[str, Any]:
    section, _, key = path.rpartition(".")
    return LEAST | ({section: {**LEAST.get(section, {}), key: value}} if section else {key: value})


def test_every_number_has_bounds_and_a_value_beyond_them_is_refused_by_its_path(
    tmp_path: Path,
) -> None:
    found = dict(numbers(ServingConfig))
    assert len(found) > 30
    for path, declared in found.items():
        assert declared.least is not None, path
        assert declared.most is not None, path
        for value, fault in (
            (declared.least - 1, f"{path}: must be at least {declared.least}, got "),
            (declared.most + 1, f"{path}: must be at most {declared.most}, got "),
        ):
            with pytest.raises(ConfigError, match=re.escape(fault)):
                load(tmp_path, changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("listen.prot", 1, "listen: unknown key 'prot'"),
        ("limits.default_max_ads", 10_001, "default_max_ads: 10001 is more than max_ads, 10000"),
        ("logs.format", "xml", "logs.format: expected one of text, json, got 'xml'"),
        ("updates.require_full", True, "updates.require_full: needs a folder that keeps updates"),
        ("precision", "int8", "precision: expected one of auto, fp32, bf16, fp8, got 'int8'"),
        ("fp8_keep", ["qkv"], "fp8_keep: has no effect with precision auto; set precision: fp8"),
    ],
)
def test_an_impossible_setting_is_refused_by_its_path(
    tmp_path: Path, path: str, value: Any, fault: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(fault)):
        load(tmp_path, changed(path, value))


@pytest.mark.parametrize(
    ("kept", "fault"),
    [
        (["qkv", "qkv"], "qkv, qkv: has a product twice; name each once"),
        (list(get_args(Fp8Product)), "keeps every product, so nothing is in fp8; set "),
    ],
)
def test_products_that_cannot_be_kept_are_refused(
    tmp_path: Path, kept: list[str], fault: str
) -> None:
    with pytest.raises(ConfigError, match=f"fp8_keep: {fault}"):
        load(tmp_path, {**LEAST, "precision": "fp8", "fp8_keep": kept})


def test_the_document_has_the_settings_as_they_are_declared(repository: Path) -> None:
    text = (repository / "docs" / "settings.md").read_text()
    assert replaced(text, "settings", settings_tables()) == text, "run `make fix`"


def test_every_setting_says_what_it_means() -> None:
    rows = [line for line in settings_tables().splitlines() if line[:3] == "| `"]
    assert len(rows) > 30
    assert [row for row in rows if row.split("|")[4].strip() == ""] == []
