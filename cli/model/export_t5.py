import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from grace.cli.options import AsJson
from grace.configs.options import Argument, Option


def export_t5(
    checkpoint: Annotated[Path, Argument("Folder of a checkpoint with encoder t5.")],
    out: Annotated[Path, Option("Folder to write, new or empty.", is_new=True)],
    as_json: AsJson = False,
) -> None:
    """Turn a checkpoint into a Hugging Face T5 folder, to evaluate and train it in transformers.

    Prints the command that turns the folder into a checkpoint again.

    Example: `grace export-t5 checkpoint --out hf-t5`
    """
    from grace.model.checkpoints.t5_folder import export_t5 as export_folder

    options = []
    for name, value in asdict(export_folder(checkpoint, out)).items():
        if value not in (None, ()):
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            options += [f"--{name.replace('_', '-')}", text]
    if as_json:
        print(json.dumps({"out": str(out), "import_options": options}))
    else:
        print(shlex.join(["grace", "import-t5", str(out), *options]), "--out CHECKPOINT")
