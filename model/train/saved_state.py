"""The state of an unfinished training: one file next to the folder of its checkpoint.

It is a safetensors file, replaced whole: the weights, both moments of AdamW for each, and the
losses so far. Its metadata names the run, so that another run does not continue from it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from grace.configs.errors import InputError

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class SavedState:
    """`run` holds what the weights depend on: recipe, seed, data and device."""

    path: Path
    run: Mapping[str, Any]

    @classmethod
    def of_run(cls, out: Path, run: Mapping[str, Any]) -> "SavedState":
        """Return the state of the run that will write `out`."""
        # JSON makes lists of tuples, as they come back from the file.
        facts = dict(_leaves("", json.loads(json.dumps(run))))
        return cls(out.absolute().with_name(f"{out.name}.partial"), facts)

    def save(
        self, model: torch.nn.Module, optimizer: torch.optim.AdamW, losses: list[float]
    ) -> None:
        tensors = {"losses": torch.tensor(losses, dtype=torch.float64)}
        for name, weight in model.named_parameters():
            tensors[f"weight.{name}"] = weight.detach()
            for moment in _MOMENTS:
                tensors[f"{moment}.{name}"] = optimizer.state[weight][moment]
        whole = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        partial = self.path.with_name(f".{self.path.name}.writing")
        try:
            save_file(whole, partial, {"run": json.dumps(self.run)})
            partial.replace(self.path)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from None
        finally:
            partial.unlink(missing_ok=True)

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.AdamW) -> list[float]:
        """Set weights and moments as they were saved, and return the losses so far.

        Without a file, change nothing.
        """
        if not self.path.exists():
            return []
        remedy = f"remove {self.path}, or give --no-resume, to train from the beginning"
        try:
            with safe_open(self.path, "pt") as file:
                saved = json.loads((file.metadata() or {}).get("run", "{}"))
                _require_same(self.path, saved, self.run, remedy)
                losses: list[float] = file.get_tensor("losses").tolist()
                for name, weight in model.named_parameters():
                    weight.data.copy_(file.get_tensor(f"weight.{name}"))
                    moments = {each: file.get_tensor(f"{each}.{name}") for each in _MOMENTS}
                    optimizer.state[weight] = {
                        "step": torch.tensor(float(len(losses))),
                        **{each: moment.to(weight.device) for each, moment in moments.items()},
                    }
        except (OSError, SafetensorError, ValueError) as error:
            raise InputError(f"{self.path}: cannot be read: {error}; {remedy}") from None
        return losses

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values inside nested mappings by their paths, such as training.steps."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for name, inner in value.items():
        yield from _leaves(f"{path}.{name}" if path else name, inner)


def _require_same(
    path: Path, saved: Mapping[str, Any], ours: Mapping[str, Any], remedy: str
) -> None:
    for name in sorted({*saved, *ours}):
        was, now = saved.get(name), ours.get(name)
        if was != now:
            raise InputError(
                f"{path}: an interrupted training left it, whose {name} was {was}, now it is "
                f"{now}; repeat that command to continue, or {remedy}"
            )
