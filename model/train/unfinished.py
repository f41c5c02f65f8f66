"""The file that keeps the state of a stopped training, next to the folder of its checkpoint."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import xxhash

from grace.configs.arrays import AnyArray
from grace.configs.errors import InputError
from grace.configs.options import TrainingRun
from grace.configs.regular_files import sync

_SUFFIX = ".unfinished"
_UNREADABLE = (OSError, EOFError, RuntimeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Unfinished:
    path: Path
    made_of: str  # the digest of all that decides the weights
    again: str  # the options that continue it
    note: Callable[[str], None]  # prints a line

    @classmethod
    def of(
        cls, run: TrainingRun, facts: Iterable[str | AnyArray], note: Callable[[str], None]
    ) -> "Unfinished":
        digest = xxhash.xxh3_128()
        for fact in facts:
            digest.update(fact.encode() if isinstance(fact, str) else fact.tobytes())
        path = run.out.with_name(run.out.name + _SUFFIX)
        again = f"--out {run.out} --seed {run.seed} and otherwise the same options"
        return cls(path, digest.hexdigest(), again, note)

    def read(self) -> dict[str, Any] | None:
        """Return the state of the stopped training, or None if there is no file."""
        try:
            state: dict[str, Any] = torch.load(self.path, "cpu", weights_only=True)
            if state["made_of"] == self.made_of:
                self.note(f"{self.path}: the training continues after step {state['done']:,}")
                return state
            fault = "has another recipe, --from, seed, device, log, or version of GRACE or PyTorch"
        except FileNotFoundError:
            return None
        except (*_UNREADABLE, UnpicklingError) as error:
            (line, *_) = str(error).split("\n")
            fault = f"cannot be read: {line}"
        raise InputError(f"{self.path}: {fault}; remove it, or choose another --out")

    def write(self, state: dict[str, Any]) -> None:
        partial = self.path.with_name(f".writing-{self.path.name}")
        try:
            torch.save({**state, "made_of": self.made_of}, partial)
            sync(partial)
            partial.rename(self.path)
        except (OSError, RuntimeError) as error:  # torch hides the number of a full disk's error
            (line, *_) = str(error).split("\n")
            fault = f"cannot be written: {line}; make room, or choose another --out"
            raise InputError(f"{self.path}: {fault}") from None
        finally:
            partial.unlink(missing_ok=True)

    def stop(self, state: dict[str, Any]) -> None:
        self.write(state)
        said = f"stopped after step {state['done']:,} of {len(state['losses']):,}"
        self.note(f"{said}; {self.path} keeps the state: train with {self.again} to continue")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
