"""The tensors of a value, also inside dataclasses and tuples."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from torch import Tensor


def named_tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a value with its name, also inside dataclasses and tuples."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from named_tensors(item, f"{name}[{i}]")
    elif is_dataclass(value):
        for each in fields(value):
            inner = f"{name}.{each.name}" if name else each.name
            yield from named_tensors(getattr(value, each.name), inner)
