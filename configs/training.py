"""The `training` section of a training configuration."""

from dataclasses import dataclass

from grace.configs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """AdamW; the learning rate rises for `warmup_steps`, then falls to zero as a cosine."""

    steps: int
    batch: int = 256
    learning_rate: float = 3e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01  # of matrices; gains of norms and biases have none
    clip_norm: float = 1.0
    threads: int = 1  # more help a small model little, and change the order of sums

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "clip_norm"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")
        for name in ("warmup_steps", "weight_decay"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: must not be negative, got {getattr(self, name)}")
