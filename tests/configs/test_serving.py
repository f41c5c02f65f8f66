"""A server's configuration file."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from grace.configs.errors import ConfigError
from grace.configs.serving import Fp8Product, ServingConfig, load_serving_config
from grace.model.checkpoints.init import load_model_config

GENERATION = {"max_batch": 3, "profiles": {"full": {"beams": [1, 7], "num_sids": 5}}}
LEAST: dict[str, Any] = {"snapshots": "s", "checkpoint": "c", "generation": GENERATION}


def load(tmp_path: Path, values: dict[str, Any], **folders: Path) -> ServingConfig:
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(values))
    return load_serving_config(path, **folders)


def test_every_optional_setting_has_a_default(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST)
    assert (config.snapshots, config.checkpoint) == (Path("s"), Path("c"))
    assert (config.device, config.listen.port, config.batching.max_wait_ms) == ("cpu", 50051, 0.0)
    assert (config.precision, config.memo_bytes) == ("auto", 4 << 30)


def test_folders_of_the_command_line_replace_the_folders_of_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST, snapshots=Path("mine"), state_dir=Path("kept"))
    folders = (config.snapshots, config.checkpoint, config.state_dir)
    assert folders == (Path("mine"), Path("c"), Path("kept"))


def test_a_missing_folder_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    values = {"generation": GENERATION}
    with pytest.raises(ConfigError, match="missing key 'checkpoint'; add it, or give --check"):
        load(tmp_path, values, snapshots=Path("mine"))


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


def test_without_a_file_a_missing_folder_is_an_error_that_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"^the defaults: missing key .*; give --checkpoint$"):
        load_serving_config(None, Path("s"))


@pytest.mark.parametrize(
    ("name", "device", "precision"),
    [("serve.yaml", "cpu", "auto"), ("serve-h200.yaml", "cuda:0", "bf16")],
)
def test_the_shipped_files_lack_nothing_but_their_folders(
    repository: Path, name: str, device: str, precision: str
) -> None:
    config = load_serving_config(repository / "configs" / name, Path("s"), Path("c"))
    assert config.generation.profiles.keys() == {"full", "reduced"}
    assert (config.device, config.precision) == (device, precision)


def test_the_h200_configuration_has_the_beams_of_the_paper(repository: Path) -> None:
    folder = repository / "configs"
    config = load_serving_config(folder / "serve-h200.yaml", Path("s"), Path("c"))
    assert config.generation == load_model_config(folder / "paper.yaml").generation


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("listen.port", 65536, "listen.port: must be 0 to 65535, got 65536"),
        ("listen.prot", 1, "listen: unknown key 'prot'"),
        ("listen.drain_seconds", -1, "drain_seconds: must be at least 0, got -1"),
        ("batching.max_waiting", 0, "batching.max_waiting: must be at least 1, got 0"),
        ("limits.default_max_ads", 10_001, "max_ads: 10001 is more than max_ads, 10000"),
        ("limits.exclude_ads", -1, "limits.exclude_ads: must be at least 0"),
        ("limits.message_bytes", 0, "limits.message_bytes: must be at least 1"),
        ("threads.post", 0, "threads.post: must be at least 1, got 0"),
        ("listen.reply_seconds", 86_401, "listen.reply_seconds: must be at most 86400.0"),
        ("batching.max_waiting", 65_537, "batching.max_waiting: must be at most 65536, got"),
        ("batching.max_wait_ms", 60_001, "batching.max_wait_ms: must be at most 60000, got"),
        ("limits.max_ads", 1 << 40, "limits.max_ads: must be at most 1000000, got 1099511"),
        ("limits.exclude_ads", 1 << 40, "limits.exclude_ads: must be at most 1000000, got"),
        ("limits.message_bytes", 1 << 30, "limits.message_bytes: must be at most 268435456"),
        ("limits.request_id_bytes", 4097, "limits.request_id_bytes: must be at most 4096"),
        ("limits.names", 65_537, "limits.names: must be at most 65536, got 65537"),
        ("limits.user_values", 0, "limits.user_values: must be at least 1, got 0"),
        ("limits.open_calls", 0, "limits.open_calls: must be at least 1, got 0"),
        ("threads.torch", 513, "threads.torch: must be at most 512, got 513"),
        ("logs.format", "xml", "logs.format: expected one of text, json, got 'xml'"),
        ("precision", "int8", "precision: expected one of auto, fp32, bf16, fp16, fp8, got 'int8'"),
        ("memo_bytes", -1, "memo_bytes: must be at least 0, got -1"),
        ("memo_bytes", 1 << 51, "memo_bytes: must be at most 1125899906842624, got"),
        ("fp8_keep", ["qkv"], "fp8_keep: has no effect with precision auto; set precision: fp8"),
    ],
)
def test_an_impossible_setting_is_refused_by_its_path(
    tmp_path: Path, path: str, value: Any, fault: str
) -> None:
    section, _, key = path.rpartition(".")
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, LEAST | ({section: {key: value}} if section else {key: value}))
    assert fault in str(refused.value)


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
