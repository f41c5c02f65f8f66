import json
from pathlib import Path
from typing import Annotated

from grace.cli.options import AsJson
from grace.configs.options import Argument, CausalLayout


def import_causal(
    folder: Annotated[Path, Argument("Folder with config.json and *.safetensors.", "HF_DIR")],
    out: Annotated[Path, "Folder of the new checkpoint."],
    layout: CausalLayout,
    as_json: AsJson = False,
) -> None:
    """Turn a Hugging Face folder of a causal model into a checkpoint with the same scores.

    Reads Qwen3, Qwen2, Qwen2.5, LLaMA and Mistral. Weights keep their type.

    Example: `grace import-causal qwen --out model --sid-space shop-1 --sid-tokens A{}`
    """
    from grace.model.checkpoints.folder import require_new

    require_new(out)  # before torch is imported, which takes seconds
    from grace.model.checkpoints.checkpoint import save_checkpoint
    from grace.model.checkpoints.import_causal import import_causal as import_folder

    imported = import_folder(folder, layout)
    model, found = imported.model, imported.vocabulary
    checkpoint = save_checkpoint(model, out)
    weights = sum(weight.numel() for weight in model.parameters())
    if as_json:
        facts = {"out": str(out), "checkpoint": checkpoint, "weights": weights}
        print(json.dumps({**facts, "without_token": found.without_token}))
        return
    dtype = str(model.decoder.embed.dtype).removeprefix("torch.")
    print(f"{out}: checkpoint {checkpoint}, {weights / 1e6:,.1f} M weights as {dtype}")
    print(f"SID space {layout.sid_space}, codes per position {found.vocab_sizes}")
    for position, codes in enumerate(found.without_token):
        if codes:
            print(f"position {position}: {codes:,} codes have no token: give no ad such a SID")
