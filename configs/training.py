"""The `training` section of a training configuration."""

from dataclasses import dataclass
from typing import Annotated

from grace.configs.options import Option
from grace.configs.sections import Section


@dataclass(frozen=True, slots=True)
class TrainingConfig(Section):
    """AdamW; the learning rate rises for `warmup_steps`, then falls to zero as a cosine."""

    steps: Annotated[int, Option(least=1)]
    batch: Annotated[int, Option(least=1)] = 256
    learning_rate: Annotated[float, Option(above=0)] = 3e-3
    warmup_steps: Annotated[int, Option(least=0)] = 50
    weight_decay: Annotated[float, Option("of matrices; gains and biases have none", least=0)] = (
        0.01
    )
    clip_norm: Annotated[float, Option(above=0)] = 1.0
    threads: Annotated[int, Option("more change the order of sums", least=1)] = 1
