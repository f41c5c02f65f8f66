"""How much a generation step may keep: named beam profiles."""

from dataclasses import dataclass
from typing import Annotated

from grace.configs.errors import ConfigError

__all__ = ["BeamProfile", "GenerationConfig"]

MAX_BATCH = 1024
MAX_BEAMS = 65_536


@dataclass(frozen=True, slots=True)
class BeamProfile:
    """How wide generation searches."""

    beams: Annotated[tuple[int, ...], "live beams entering each step, the first of them 1"]
    num_sids: Annotated[int, "SIDs that come out, at most"]

    def __post_init__(self) -> None:
        if not self.beams or self.beams[0] != 1:
            raise ConfigError(f"beams: decoding starts from 1 beam, got {list(self.beams)}")
        if min(self.beams) < 1 or self.num_sids < 1:
            raise ConfigError(
                f"beams and num_sids must be at least 1, got {list(self.beams)}, {self.num_sids}"
            )
        if max(*self.beams, self.num_sids) > MAX_BEAMS:
            raise ConfigError(
                f"beams and num_sids must be at most {MAX_BEAMS}, got {list(self.beams)}, "
                f"{self.num_sids}"
            )

    def kept_after(self, step: int) -> int:
        """How many beams a step leaves: those of the next step, or at the last one the SIDs."""
        return self.num_sids if step + 1 == len(self.beams) else self.beams[step + 1]


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """What is computed at once, and the beam profiles that a request may name."""

    max_batch: Annotated[int, "requests that are computed together at most"]
    profiles: Annotated[dict[str, BeamProfile], "beam profiles by name"]
    default_profile: Annotated[str, "the profile of a request that names none"] = "full"

    def __post_init__(self) -> None:
        if not 1 <= self.max_batch <= MAX_BATCH:
            raise ConfigError(f"max_batch: must be 1 to {MAX_BATCH}, got {self.max_batch}")
        if self.default_profile not in self.profiles:
            raise ConfigError(
                f"default_profile: {self.default_profile!r} is not one of the profiles "
                f"({', '.join(sorted(self.profiles)) or 'none'})"
            )

    def require_steps(self, sid_length: int) -> None:
        """Every profile has a number of beams for each of a SID's positions."""
        for name, profile in self.profiles.items():
            if len(profile.beams) != sid_length:
                raise ConfigError(
                    f"generation.profiles.{name}.beams: {len(profile.beams)} steps, but "
                    f"vocab_sizes has {sid_length} positions; give one number of beams per position"
                )

    def require_vocabulary(self, vocab_sizes: tuple[int, ...]) -> None:
        """No profile keeps more beams than those before can be continued to."""
        for name, profile in self.profiles.items():
            most = 1
            for step, size in enumerate(vocab_sizes):
                most = min(most, profile.beams[step]) * size
                if profile.kept_after(step) > most:
                    kept = "num_sids" if step + 1 == len(vocab_sizes) else f"beams[{step + 1}]"
                    raise ConfigError(
                        f"generation.profiles.{name}.{kept}: {profile.kept_after(step)}, but the "
                        f"beams before have {most} continuations at most; give no more"
                    )

    @property
    def batch_buckets(self) -> tuple[int, ...]:
        """Batch sizes that are computed: powers of two, and the largest."""
        sizes, size = [], 1
        while size < self.max_batch:
            sizes.append(size)
            size *= 2
        return (*sizes, self.max_batch)
