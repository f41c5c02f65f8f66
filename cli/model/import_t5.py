"""`grace import-t5`: from a Hugging Face T5 folder to a checkpoint."""

import json
from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import AsJson, Dtype, require_known
from grace.configs.options import Argument, Option


def import_t5(
    folder: Annotated[Path, Argument("Folder with config.json and *.safetensors.", "HF_DIR")],
    out: Annotated[Path, "Folder of the new checkpoint."],
    sid_space: Annotated[str, "Name of the SID space, which must be the snapshot's."],
    vocab_sizes: Annotated[
        tuple[int, ...],
        Option("Tokens per position, as 256,256,256,256.", commas="256,256,256,256"),
    ],
    first_token: Annotated[
        int | None, "Token of value 0 at position 0; the other positions follow. Default: 1."
    ] = None,
    token_offsets: Annotated[
        tuple[int, ...] | None,
        Option("Token of value 0 at each position, if not consecutive.", commas="1,257,513"),
    ] = None,
    prefix_tokens: Annotated[
        tuple[int, ...], Option("Tokens before the history, as 1025,7.", commas="1025,7")
    ] = (),
    eos_token: Annotated[int | None, "Token after the history. Default: none."] = None,
    history: Annotated[str, "Name of the input with the history."] = "clicks",
    max_history: Annotated[int, Option("Most events of it that the model reads.", least=1)] = 20,
    dtype: Dtype = "float32",
    as_json: AsJson = False,
) -> None:
    """Turn a Hugging Face T5 (TIGER) folder into a checkpoint with the same scores.

    Example: `grace import-t5 tiger --out model --sid-space amazon-1 --vocab-sizes 256,256,256,256`
    """
    from grace.model.checkpoints.folder import require_new

    require_new(out)  # before torch is imported, which takes seconds
    from grace.model.checkpoints.checkpoint import save_checkpoint
    from grace.model.checkpoints.import_t5 import T5Layout, consecutive_offsets
    from grace.model.checkpoints.import_t5 import import_t5 as import_folder
    from grace.model.checkpoints.weights_file import DTYPES

    require_known(dtype, tuple(DTYPES), "--dtype")
    if token_offsets is not None and first_token is not None:
        raise typer.BadParameter(
            "the offsets say it already; leave one of them out", param_hint="--first-token"
        )
    if token_offsets is None:
        token_offsets = consecutive_offsets(vocab_sizes, 1 if first_token is None else first_token)
    layout = T5Layout(
        sid_space=sid_space,
        vocab_sizes=vocab_sizes,
        token_offsets=token_offsets,
        history=history,
        max_history=max_history,
        prefix_tokens=prefix_tokens,
        eos_token=eos_token,
    )
    model = import_folder(folder, layout).to(DTYPES[dtype])
    checkpoint = save_checkpoint(model, out)
    weights = sum(weight.numel() for weight in model.parameters())
    if as_json:
        print(json.dumps({"out": str(out), "checkpoint": checkpoint, "weights": weights}))
        return
    print(f"{out}: checkpoint {checkpoint}, {weights / 1e6:,.1f} M weights as {dtype}")
    print(f"SID space {sid_space}, tokens of position 0, 1, ... from {layout.token_offsets}")
