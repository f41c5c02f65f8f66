"""Named beam profiles: how many beams each generation step keeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from grace.configs.errors import ConfigError

MAX_BATCH = 1024
MAX_BEAMS = 65_536
DEFAULT_BATCH = 16
DEFAULT_BEAMS = {"full": 64, "reduced": 16}
"""The default beam profiles: their beams after the first step, and their SIDs."""


@dataclass(frozen=True, slots=True)
class BeamProfile:
    """How wide generation searches."""

    beams: Annotated[tuple[int, ...], "live beams that enter each step; the first is 1"]
    num_sids: Annotated[int, "SIDs that generation returns at most"]
    degrades_to: Annotated[
        str | None, "the smaller profile that its requests get while the queue stays too long"
    ] = None

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
        """Return the beams that the next step gets, or after the last step the SIDs."""
        return self.num_sids if step + 1 == len(self.beams) else self.beams[step + 1]


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The largest batch, and the beam profiles that a request may name."""

    max_batch: Annotated[int, "the largest number of requests in a batch"]
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
        for name, profile in self.profiles.items():
            self._require_smaller(f"profiles.{name}.degrades_to", profile)
        for name in self.profiles:
            self._require_end(name)

    @classmethod
    def fitting(cls, vocab_sizes: tuple[int, ...]) -> "GenerationConfig":
        """Return the default for a server whose settings have no section `generation`."""
        profiles = {name: _profile(width, vocab_sizes) for name, width in DEFAULT_BEAMS.items()}
        return cls(max_batch=DEFAULT_BATCH, profiles=profiles)

    @property
    def ladders(self) -> Mapping[str, tuple[str, ...]]:
        """Return the smaller profiles, in their order, of each profile that degrades."""
        found = {name: self._ladder(name) for name in self.profiles}
        return {name: smaller for name, smaller in found.items() if smaller}

    def require_steps(self, sid_length: int) -> None:
        """Check that every profile has one number of beams per position of a SID."""
        for name, profile in self.profiles.items():
            if len(profile.beams) != sid_length:
                raise ConfigError(
                    f"generation.profiles.{name}.beams: {len(profile.beams)} steps, but "
                    f"vocab_sizes has {sid_length} positions; give one number of beams per position"
                )

    def require_vocabulary(self, vocab_sizes: tuple[int, ...]) -> None:
        """Check that no profile keeps more beams than its earlier beams can continue to."""
        for name, profile in self.profiles.items():
            most = 1
            for step, size in enumerate(vocab_sizes):
                most = min(most, profile.beams[step]) * size
                if profile.kept_after(step) > most:
                    kept = "num_sids" if step + 1 == len(vocab_sizes) else f"beams[{step + 1}]"
                    raise ConfigError(
                        f"generation.profiles.{name}.{kept}: {profile.kept_after(step)}, but the "
                        f"earlier beams have at most {most} continuations; give at most that number"
                    )

    @property
    def batch_buckets(self) -> tuple[int, ...]:
        """Return the batch sizes that the engine computes: powers of two, and the largest."""
        sizes, size = [], 1
        while size < self.max_batch:
            sizes.append(size)
            size *= 2
        return (*sizes, self.max_batch)

    def _ladder(self, name: str) -> tuple[str, ...]:
        smaller = self.profiles[name].degrades_to
        return () if smaller is None else (smaller, *self._ladder(smaller))

    def _require_smaller(self, key: str, profile: BeamProfile) -> None:
        name = profile.degrades_to
        if name is None:
            return
        smaller = self.profiles.get(name)
        if smaller is None:
            raise ConfigError(
                f"{key}: {name!r} is not one of the profiles ({', '.join(sorted(self.profiles))})"
            )
        if len(smaller.beams) != len(profile.beams) or not all(
            few <= many
            for few, many in zip(
                (*smaller.beams, smaller.num_sids), (*profile.beams, profile.num_sids), strict=True
            )
        ):
            raise ConfigError(
                f"{key}: {name!r} has {list(smaller.beams)} beams and {smaller.num_sids} SIDs; "
                f"give at most {list(profile.beams)} and {profile.num_sids}, or name another"
            )

    def _require_end(self, name: str) -> None:
        """Refuse a loop of profiles that degrade to each other."""
        seen = [name]
        while (following := self.profiles[seen[-1]].degrades_to) is not None:
            if following in seen:
                loop = " -> ".join((*seen, following))
                raise ConfigError(
                    f"profiles.{name}.degrades_to: {loop} is a loop; remove one degrades_to"
                )
            seen.append(following)


def _profile(width: int, vocab_sizes: tuple[int, ...]) -> BeamProfile:
    """Return a profile of `width` beams, or of fewer where there are fewer prefixes."""
    live = [1]
    for size in vocab_sizes:
        live.append(min(width, live[-1] * size))
    return BeamProfile(beams=tuple(live[:-1]), num_sids=live[-1])
