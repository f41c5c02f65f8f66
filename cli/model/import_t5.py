from pathlib import Path
from typing import Annotated

from grace.cli.options import AsJson, Dtype, NewCheckpoint
from grace.cli.reports import print_imported
from grace.configs.options import Argument, T5Layout


def import_t5(
    folder: Annotated[Path, Argument("Folder with config.json and *.safetensors.", "HF_DIR")],
    out: NewCheckpoint,
    layout: T5Layout,
    dtype: Dtype = "float32",
    as_json: AsJson = False,
) -> None:
    """Turn a Hugging Face T5 (TIGER) folder into a checkpoint with the same scores.

    Without --sid-tokens and --offsets, the tokens of SIDs follow each other from 1.

    Example: `grace import-t5 tiger --out model --sid-space amazon-1 --vocab-sizes 256,256,256,256`
    """
    from grace.model.checkpoints.checkpoint import save_checkpoint
    from grace.model.checkpoints.t5_folder import import_t5 as import_folder
    from grace.model.checkpoints.weights_file import DTYPES

    imported = import_folder(folder, layout)
    checkpoint = save_checkpoint(imported.model.to(DTYPES[dtype]), out)
    print_imported(imported, out, checkpoint, as_json)
