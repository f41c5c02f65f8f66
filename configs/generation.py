"""Named beam profiles: how many beams each generation step keeps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import ge, mul
from typing import Annotated

from grace.configs.errors import ConfigError
from grace.configs.options import Option
from grace.configs.sections import Section

WIDTH = Option(least=1, most=65_536)
DEFAULT_BATCH = 16
DEFAULT_BEAMS = {"full": 64, "reduced": 16}
"""The default beam profiles: their beams after the first step, and their SIDs."""


@dataclass(frozen=True, slots=True)
class BeamProfile(Section):
    """How wide generation searches."""

    beams: Annotated[tuple[int, ...], WIDTH, "live beams that enter each step; the first is 1"]
    num_sids: Annotated[int, WIDTH, "SIDs that generation returns at most"]
    degrades_to: Annotated[
        str | None, "the smaller profile that its requests get while the queue stays too long"
    ] = None

    def faults(self) -> Iterable[str]:
        if self.beams[:1] != (1,):
            yield f"beams: decoding starts from 1 beam, got {list(self.beams)}"

    def covers(self, other: "BeamProfile") -> bool:
        """Return whether the other profile has at most as many beams in every step."""
        ours, theirs = (*self.beams, self.num_sids), (*other.beams, other.num_sids)
        return len(ours) == len(theirs) and all(map(ge, ours, theirs))

    def __str__(self) -> str:
        return f"{list(self.beams)} beams and {self.num_sids} SIDs"

    def kept_after(self, step: int) -> int:
        """Return the beams that the next step gets, or after the last step the SIDs."""
        return self.num_sids if step + 1 == len(self.beams) else self.beams[step + 1]


@dataclass(frozen=True, slots=True)
class GenerationConfig(Section):
    """The largest batch, and the beam profiles that a request may name."""

    max_batch: Annotated[
        int, Option("the largest number of requests in a batch", least=1, most=1024)
    ]
    profiles: Annotated[dict[str, BeamProfile], "beam profiles by name"]
    default_profile: Annotated[str, "the profile of a request that names none"] = "full"

    def faults(self) -> Iterable[str]:
        known = ", ".join(sorted(self.profiles)) or "none"
        if self.default_profile not in self.profiles:
            yield f"default_profile: {self.default_profile!r} is not one of the profiles ({known})"
        for name, profile in self.profiles.items():
            if (smaller := profile.degrades_to) is not None:
                key = f"profiles.{name}.degrades_to"
                if smaller not in self.profiles:
                    yield f"{key}: {smaller!r} is not one of the profiles ({known})"
                elif not profile.covers(self.profiles[smaller]):
                    yield (
                        f"{key}: {smaller!r} has {self.profiles[smaller]}; give at most {profile}, "
                        "or name another"
                    )
        for name in self.profiles:
            *before, last = ladder = self._ladder(name)
            if last in before:
                loop = " -> ".join(ladder)
                yield f"profiles.{name}.degrades_to: {loop} is a loop; remove one degrades_to"

    @classmethod
    def fitting(cls, vocab_sizes: tuple[int, ...]) -> "GenerationConfig":
        """Return the default for a server whose settings have no section `generation`."""
        profiles = {name: profile_of(vocab_sizes, width) for name, width in DEFAULT_BEAMS.items()}
        return cls(max_batch=DEFAULT_BATCH, profiles=profiles)

    @property
    def ladders(self) -> Mapping[str, tuple[str, ...]]:
        """Return the smaller profiles, in their order, of each profile that degrades."""
        found = {name: self._ladder(name)[1:] for name in self.profiles}
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
        """Return the batch sizes that the engine computes: at most a fifth of a batch is empty."""
        sizes, size = [], 1
        while size < self.max_batch:
            sizes.append(size)
            size += max(4, 1 << (size.bit_length() - 1)) // 4
        return (*sizes, self.max_batch)

    def _ladder(self, name: str) -> tuple[str, ...]:
        """Return the profile and its smaller ones, down to the last or to one that comes again."""
        ladder = [name]
        while ladder[-1] not in ladder[:-1]:
            smaller = self.profiles[ladder[-1]].degrades_to
            if smaller is None:
                break
            ladder.append(smaller)
        return tuple(ladder)


def profile_of(vocab_sizes: Sequence[int], width: int) -> BeamProfile:
    """Return a profile of this many beams, or of fewer if there are fewer prefixes."""
    *beams, num_sids = (min(width, each) for each in accumulate(vocab_sizes, mul, initial=1))
    return BeamProfile(tuple(beams), num_sids)
