"""Checkpoints: a reader gets back what was written, and refuses every fault by name."""

import pickle
import re
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
import torch
import xxhash

from grace.configs.errors import CheckpointError, ConfigError, InputError
from grace.model.checkpoints.checkpoint import (
    checkpoint_id,
    load_checkpoint,
    load_encoder_decoder,
    save_checkpoint,
)
from grace.model.checkpoints.folder import MODEL_YAML, WEIGHTS, load_spec, require_sids
from grace.model.checkpoints.init import random_model, write_random
from grace.model.checkpoints.weights_file import DTYPES
from grace.model.definition.spec import CategoricalInput, ModelSpec, SequenceInput
from support.fast_cases import MODELS
from support.model_folders import Change, weights

T5, INTERFORMER = MODELS["t5"], MODELS["interformer"]
EVERY_SPEC = pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound checkpoint, for its tensors to be spoiled."""
    save_checkpoint(random_model(T5, seed=3), tmp_path / "model")
    return tmp_path / "model"


def refusal(folder: Path, features: torch.dtype = torch.float32) -> str:
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        load_checkpoint(folder, features=features)
    assert str(caught.value).startswith(str(folder)), "the file comes first"
    assert "\n" not in str(caught.value)
    return str(caught.value)


@EVERY_SPEC
@pytest.mark.parametrize("stored", DTYPES.values(), ids=DTYPES)
def test_a_saved_model_of_any_type_is_loaded(
    spec: ModelSpec, stored: torch.dtype, tmp_path: Path
) -> None:
    model = random_model(spec, seed=5, dtype=stored)
    written = save_checkpoint(model, tmp_path / "a" / "model")
    assert sorted(p.name for p in (tmp_path / "a").rglob("*")) == ["model", WEIGHTS, MODEL_YAML]
    found = load_checkpoint(tmp_path / "a" / "model", features=torch.bfloat16)
    assert found.spec == spec
    assert not found.training
    assert not any(weight.requires_grad for weight in found.parameters())
    assert written == checkpoint_id(tmp_path / "a" / "model")
    expected = model.state_dict()
    assert found.state_dict().keys() == expected.keys()
    for name, tensor in found.state_dict().items():
        loaded = torch.bfloat16 if name.startswith("features.") else torch.float32
        assert tensor.dtype == loaded
        assert torch.equal(tensor, expected[name].to(loaded)), name


def test_who_may_read_a_new_file_may_read_the_weights(folder: Path) -> None:
    """The server and the training may run as different users."""
    (folder / "new").touch()
    assert {each.stat().st_mode for each in folder.iterdir()} == {(folder / "new").stat().st_mode}


def test_a_loaded_model_does_not_change_with_its_file(folder: Path) -> None:
    """The library reads through memory maps; a model must not keep any."""
    loaded = load_checkpoint(folder)
    expected = {name: weight.clone() for name, weight in loaded.state_dict().items()}
    with (folder / WEIGHTS).open("r+b") as file:
        file.write(bytes((folder / WEIGHTS).stat().st_size))
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, expected[name]), name


def test_the_id_is_that_of_both_files_digests(folder: Path) -> None:
    digests = [xxhash.xxh3_128((folder / n).read_bytes()).digest() for n in (MODEL_YAML, WEIGHTS)]
    assert xxhash.xxh3_128(b"".join(digests)).hexdigest()[:16] == checkpoint_id(folder)


NAMES = [*'on NO null ~ 1e3 0o17 007 12:30 - "q"'.split(), "a: b", "été #1", "x" * 255]


def test_model_yaml_reads_back_as_the_same_whatever_its_names(tmp_path: Path) -> None:
    for place, name in enumerate(NAMES):
        inputs = {f"{name}{i}": value for i, value in enumerate(INTERFORMER.inputs.values())}
        spec = replace(INTERFORMER, sid_space=name, inputs=inputs)
        save_checkpoint(random_model(spec, seed=1), tmp_path / str(place))
        assert load_spec(tmp_path / str(place) / MODEL_YAML) == spec


def test_a_checkpoint_is_never_overwritten(folder: Path) -> None:
    before = checkpoint_id(folder)
    with pytest.raises(InputError, match="is already there; choose a new folder"):
        save_checkpoint(random_model(T5, seed=9), folder)
    assert checkpoint_id(folder) == before


def test_a_failed_write_leaves_nothing_and_the_next_one_removes_the_rest_of_a_killed_one(
    tmp_path: Path,
) -> None:
    model = random_model(T5, seed=1)
    rest = tmp_path / ".writing-m"
    rest.mkdir()
    (rest / WEIGHTS).write_bytes(b"half")
    with torch.no_grad():
        model.decoder.start[7] = torch.nan
    with pytest.raises(CheckpointError, match=r"'decoder.start' has 1 of 24 numbers NaN"):
        save_checkpoint(model, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    rest.mkdir()
    (tmp_path / "link").symlink_to("m")  # stays a link
    save_checkpoint(random_model(T5, seed=1), tmp_path / "link")
    assert {x.name: x.is_symlink() for x in tmp_path.iterdir()} == {"link": True, "m": False}


def rewritten(old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        text = (folder / MODEL_YAML).read_text()
        assert old in text
        (folder / MODEL_YAML).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (weights(lambda x: x.pop("decoder.layers.1.cross_k")), "layers.1.cross_k' [24, 21]"),
        (weights(lambda x: x.update(extra=torch.zeros(3))), "unexpected tensor 'extra'"),
        (
            weights(lambda x: x.update({"decoder.head": torch.zeros(3, 7, 21)})),
            "tensor 'decoder.head' must be [3, 18, 24] by model.yaml, got [3, 7, 21]",
        ),
        *(
            (weights(lambda x, n=n: x["features.embed"][0, :11].fill_(n)), "11 of 630 numbers NaN")  # type: ignore[misc]
            for n in (torch.nan, torch.inf, -torch.inf)
        ),
        *(
            (weights(lambda x, t=t: x.update(bias=torch.zeros(3, dtype=t))), "'bias' has dtype")  # type: ignore[misc]
            for t in (torch.float64, torch.int8, torch.float8_e4m3fn)
        ),
        (rewritten("layers: 2", "layers: 1000000000"), "layers: must be at most 1000, got"),
        (rewritten("d_ff: 40", f"d_ff: 1{18 * '0'}"), "describes tensors that cannot be"),
        (rewritten("d_ff: 40", f"d_ff: 1{21 * '0'}"), "describes tensors that cannot be"),
        (lambda folder: (folder / WEIGHTS).unlink(), f"{WEIGHTS}: missing"),
        (
            lambda folder: (folder / MODEL_YAML).rename(folder / "config.json"),
            "model.yaml: missing; for a Hugging Face folder, run `grace",
        ),
    ],
)
def test_what_is_wrong_in_a_folder_is_named(change: Change, fault: str, folder: Path) -> None:
    change(folder)
    assert fault in refusal(folder)
    with pytest.raises(InputError, match="no checkpoint here"):
        load_checkpoint(folder / "nothing")


def test_numbers_beyond_the_range_of_a_servers_precision_are_refused(folder: Path) -> None:
    weights(lambda tensors: tensors["decoder.start"][:3].fill_(-3.4e38))(folder)
    assert load_encoder_decoder(folder).decoder.start[0] == -3.4e38
    fault = refusal(folder, torch.bfloat16)
    assert "tensor 'decoder.start' has 3 numbers beyond the range of bfloat16; use" in fault


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path("exploded").touch, ())


def test_a_pickle_is_refused_with_the_remedy_and_never_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / WEIGHTS).write_bytes(pickle.dumps(Bomb()))
    refusal(folder)
    assert not (tmp_path / "exploded").exists()
    for zipped in (True, False):
        torch.save(Bomb(), folder / WEIGHTS, _use_new_zipfile_serialization=zipped)
        assert "not a whole safetensors file" in refusal(folder)
    for name in ("pytorch_model.bin", "last.ckpt", "model.pt", "weights.pth"):
        (folder / WEIGHTS).rename(folder / name)
        fault = refusal(folder)
        assert name in fault
        assert "save_file(torch.load(" in fault
        (folder / name).rename(folder / WEIGHTS)


HEADERS = {
    "longer than the file": (1 << 40, b"{}"),
    "not JSON": (2, b"{{"),
    "beyond the end": (66, b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12000000000000]}}'),
    "deep": (40000, b"[" * 40000),
}


def test_a_truncated_longer_or_hostile_file_is_refused(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    lengths = (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1)
    hostile = [length.to_bytes(8, "little") + header for length, header in HEADERS.values()]
    for content in (*(whole[:length] for length in lengths), whole + b"\0", *hostile):
        (folder / WEIGHTS).write_bytes(content)
        assert "not a whole safetensors file" in refusal(folder)


@EVERY_SPEC
def test_hostile_numbers_in_model_yaml_are_refused_or_read(spec: ModelSpec, tmp_path: Path) -> None:
    save_checkpoint(random_model(spec, seed=1), tmp_path / "m")
    text = (tmp_path / "m" / MODEL_YAML).read_text()
    refused = 0
    places = re.finditer(r"(?<=[ \[])-?[0-9]+(?=[],}\n])", text)
    hostile = cycle(["0", "-1", "1000000007", "3", "1" + "0" * 30, "-1"])
    for found, number in zip(places, hostile, strict=False):
        changed = text[: found.start()] + number + text[found.end() :]
        (tmp_path / "m" / MODEL_YAML).write_text(changed)
        try:
            loaded = load_checkpoint(tmp_path / "m")
        except (CheckpointError, ConfigError) as error:
            assert str(error).startswith(str(tmp_path / "m"))
            refused += 1
        else:
            assert loaded.spec == load_spec(tmp_path / "m" / MODEL_YAML)
    assert refused > 10


@pytest.mark.parametrize("name", ["a.b", "", "\udcff"])
def test_a_name_that_no_module_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="a name is text, not empty, without a dot"):
        replace(INTERFORMER, inputs={name: CategoricalInput(cardinality=3)})
    with pytest.raises(ConfigError, match="a name is text, not empty, without a dot"):
        replace(INTERFORMER, inputs={"clicks": SequenceInput(max_length=3, side={name: 3})})


@pytest.mark.parametrize(
    ("sid_space", "vocab_sizes", "fault"),
    [
        ("other", (7, 5, 11), "the model's sid_space is 'test', but the catalogue has 'other'"),
        ("test", (7, 5, 11, 7), "the model's SID length is 3, but the catalogue has 4"),
        ("test", (7, 5, 8), r"vocab_sizes is \[7, 5, 11\], but the catalogue has \[7, 5, 8\]"),
    ],
)
def test_a_model_and_a_catalogue_of_different_sids_are_refused(
    sid_space: str, vocab_sizes: tuple[int, ...], fault: str
) -> None:
    require_sids(T5, MODEL_YAML, "test", (7, 5, 11))
    with pytest.raises(CheckpointError, match=fault):
        require_sids(T5, MODEL_YAML, sid_space, vocab_sizes)


@EVERY_SPEC
def test_random_weights_follow_from_the_seed(spec: ModelSpec, tmp_path: Path) -> None:
    written = write_random(spec, tmp_path / "a", 7, torch.bfloat16)
    assert written == save_checkpoint(random_model(spec, 7, torch.bfloat16), tmp_path / "b")
    assert written != save_checkpoint(random_model(spec, 8, torch.bfloat16), tmp_path / "c")
