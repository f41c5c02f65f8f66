"""Whether what the configuration asks for can be held and numbered, told before it is tried, and
what says afterwards that memory was too little."""

import torch

from grace.configs.errors import ConfigError
from grace.configs.generation import GenerationConfig
from grace.configs.serving import LimitsConfig

__all__ = ["require_numbered_ids", "require_numbered_places", "shortage"]

MOST_PLACES = 2**31 - 1
"""Numbered by int32: the tokens of all beam rows of a batch, and the ids of all bags of one."""

_WORDS = ("out of memory", "allocate", "ALLOC_FAILED")
"""In what torch, CUDA, cuBLAS and numpy say."""


def shortage(error: BaseException) -> str | None:
    """The fault in one line if it is too little memory, or too little of a kernel's; else None."""
    text = str(error).partition("\n")[0]
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return text or "out of memory"
    if isinstance(error, RuntimeError) and any(word in text for word in _WORDS):
        return text
    # Triton's own, which nothing that also starts without a GPU may import.
    if type(error).__name__ == "OutOfResources":
        return text
    return None


def require_numbered_places(
    generation: GenerationConfig, vocab_sizes: tuple[int, ...], device: torch.device
) -> None:
    if device.type != "cuda":
        return
    widest = max(vocab_sizes)
    for name, profile in generation.profiles.items():
        rows = generation.max_batch * max(profile.beams)
        if rows * widest > MOST_PLACES:
            raise ConfigError(
                f"generation.profiles.{name}.beams: {generation.max_batch} requests "
                f"(generation.max_batch) of {max(profile.beams)} beams and {widest} tokens are "
                f"{rows * widest} places, a GPU numbers at most {MOST_PLACES}; give fewer beams or "
                "a smaller max_batch"
            )


def require_numbered_ids(limits: LimitsConfig, generation: GenerationConfig) -> None:
    """An id takes a byte of a request at least; half the numbers are left for defaults."""
    most = MOST_PLACES // 2 // generation.max_batch
    if limits.message_bytes > most:
        raise ConfigError(
            f"limits.message_bytes: {limits.message_bytes}, but the ids in {generation.max_batch} "
            f"requests (generation.max_batch) are numbered together: at most {most}; give less, "
            "or a smaller max_batch"
        )
