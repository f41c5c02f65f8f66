from pathlib import Path
from typing import Annotated

from grace.cli.options import AsJson, NewCheckpoint
from grace.cli.reports import print_imported
from grace.configs.options import Argument, CausalLayout


def import_causal(
    folder: Annotated[Path, Argument("Folder with config.json and *.safetensors.", "HF_DIR")],
    out: NewCheckpoint,
    layout: CausalLayout,
    as_json: AsJson = False,
) -> None:
    """Turn a Hugging Face folder of a causal model into a checkpoint with the same scores.

    Reads Qwen3, Qwen2, Qwen2.5, LLaMA and Mistral. Weights keep their type.

    Example: `grace import-causal qwen --out model --sid-space shop-1 --sid-tokens A{}`
    """
    from grace.model.checkpoints.checkpoint import save_checkpoint
    from grace.model.checkpoints.import_causal import import_causal as import_folder

    imported = import_folder(folder, layout)
    checkpoint = save_checkpoint(imported.model, out)
    print_imported(imported, out, checkpoint, as_json)
