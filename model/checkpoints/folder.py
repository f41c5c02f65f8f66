"""A checkpoint's folder without its weights. Nothing here loads torch."""

from pathlib import Path

from grace.configs.errors import CheckpointError, InputError
from grace.configs.sections import load_section
from grace.configs.yaml_loader import read_yaml
from grace.model.definition.causal_spec import CausalModelSpec
from grace.model.definition.spec import ModelSpec
from grace.model.definition.t5_spec import EncoderDecoderSpec

MODEL_YAML = "model.yaml"
WEIGHTS = "model.safetensors"
PICKLE_REMEDY = (
    "a pickle can run any code when it is loaded, so it is refused; where you trust it, convert "
    "it with safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'model.safetensors')"
)

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def load_spec(path: Path) -> ModelSpec:
    """Return the specification that a model.yaml describes, of either family."""
    values = read_yaml(path)
    kind = CausalModelSpec if CausalModelSpec.describes(values) else EncoderDecoderSpec
    return load_section(kind, values, str(path))


def require_files(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder}: no checkpoint here: expected a folder with {MODEL_YAML}")
    if not (folder / WEIGHTS).exists():
        for pattern in _PICKLES:
            for pickle in sorted(folder.glob(pattern)):
                raise CheckpointError(str(pickle), PICKLE_REMEDY)
    for name in (MODEL_YAML, WEIGHTS):
        if not (folder / name).exists():
            hint = "; for a Hugging Face folder, run `grace import-t5` or `grace import-causal`"
            is_foreign = name == MODEL_YAML and (folder / "config.json").exists()
            raise CheckpointError(str(folder / name), "missing" + (hint if is_foreign else ""))


def require_sids(spec: ModelSpec, file: str, sid_space: str, vocab_sizes: tuple[int, ...]) -> None:
    """Check that a model's SIDs mean the same as a catalogue's. Errors start with `file`."""
    pairs = {
        "sid_space": (repr(spec.sid_space), repr(sid_space)),
        "SID length": (spec.sid_length, len(vocab_sizes)),
        "vocab_sizes": (list(spec.vocab_sizes), list(vocab_sizes)),
    }
    for name, (ours, theirs) in pairs.items():
        if ours != theirs:
            fault = f"the model's {name} is {ours}, but the catalogue has {theirs}"
            raise CheckpointError(
                file, f"{fault}; load a checkpoint and ads of one SID space and vocabulary"
            )
