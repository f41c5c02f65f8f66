import json
from pathlib import Path
from typing import Annotated

from grace.cli.options import AsJson, Dtype
from grace.configs.options import Argument, T5Layout


def import_t5(
    folder: Annotated[Path, Argument("Folder with config.json and *.safetensors.", "HF_DIR")],
    out: Annotated[Path, "Folder of the new checkpoint."],
    layout: T5Layout,
    dtype: Dtype = "float32",
    as_json: AsJson = False,
) -> None:
    """Turn a Hugging Face T5 (TIGER) folder into a checkpoint with the same scores.

    Example: `grace import-t5 tiger --out model --sid-space amazon-1 --vocab-sizes 256,256,256,256`
    """
    from grace.model.checkpoints.folder import require_new

    require_new(out)  # before torch is imported, which takes seconds
    from grace.model.checkpoints.checkpoint import save_checkpoint
    from grace.model.checkpoints.import_t5 import import_t5 as import_folder
    from grace.model.checkpoints.weights_file import DTYPES

    model = import_folder(folder, layout).to(DTYPES[dtype])
    checkpoint = save_checkpoint(model, out)
    weights = sum(weight.numel() for weight in model.parameters())
    if as_json:
        print(json.dumps({"out": str(out), "checkpoint": checkpoint, "weights": weights}))
        return
    print(f"{out}: checkpoint {checkpoint}, {weights / 1e6:,.1f} M weights as {dtype}")
    print(f"SID space {layout.sid_space}, tokens of position 0, 1, ... from {layout.offsets}")
