"""`grace import-t5`: from a Hugging Face T5 folder to a checkpoint."""

import json
from pathlib import Path
from typing import Annotated

import typer


def import_t5(
    folder: Annotated[
        Path, typer.Argument(metavar="HF_DIR", help="Folder with config.json and *.safetensors.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new checkpoint.")],
    sid_space: Annotated[
        str, typer.Option(help="Name of the SID space, which must be the snapshot's.")
    ],
    vocab_sizes: Annotated[str, typer.Option(help="Tokens per position, as 256,256,256,256.")],
    first_token: Annotated[
        int | None,
        typer.Option(
            help="Token of value 0 at position 0; the other positions follow. Default: 1."
        ),
    ] = None,
    token_offsets: Annotated[
        str | None, typer.Option(help="Token of value 0 at each position, if not consecutive.")
    ] = None,
    prefix_tokens: Annotated[str, typer.Option(help="Tokens before the history, as 1025,7.")] = "",
    eos_token: Annotated[
        int | None, typer.Option(help="Token after the history. Default: none.")
    ] = None,
    history: Annotated[str, typer.Option(help="Name of the input with the history.")] = "clicks",
    max_history: Annotated[
        int, typer.Option(min=1, help="Most events of it that the model reads.")
    ] = 20,
    dtype: Annotated[
        str, typer.Option(help="Type of the weights: float32, bfloat16 or float16.")
    ] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Turn a Hugging Face T5 (TIGER) folder into a checkpoint with the same scores.

    Example: `grace import-t5 tiger --out model --sid-space amazon-1 --vocab-sizes 256,256,256,256`
    """
    from grace.model.checkpoints.checkpoint import save_checkpoint
    from grace.model.checkpoints.import_t5 import T5Layout, consecutive_offsets
    from grace.model.checkpoints.import_t5 import import_t5 as import_folder
    from grace.model.checkpoints.weights_file import DTYPES

    if dtype not in DTYPES:
        raise typer.BadParameter(
            f"{dtype!r}; choose from {', '.join(DTYPES)}", param_hint="--dtype"
        )
    if token_offsets is not None and first_token is not None:
        raise typer.BadParameter(
            "the offsets say it already; leave one of them out", param_hint="--first-token"
        )
    sizes = _numbers(vocab_sizes, "--vocab-sizes")
    layout = T5Layout(
        sid_space=sid_space,
        vocab_sizes=sizes,
        token_offsets=consecutive_offsets(sizes, 1 if first_token is None else first_token)
        if token_offsets is None
        else _numbers(token_offsets, "--token-offsets"),
        history=history,
        max_history=max_history,
        prefix_tokens=_numbers(prefix_tokens, "--prefix-tokens"),
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


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        raise typer.BadParameter(
            f"expected numbers such as 1,257,513, got {text!r}", param_hint=option
        ) from None
