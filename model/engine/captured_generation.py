"""Generation as CUDA graphs: encoder and whole search, one graph per batch bucket and beam profile.

A graph knows addresses, not values. A batch's features are copied to where the graph reads them,
its users and its snapshot are told to the admission slot, and its results are copied out: so a
snapshot is swapped by pointing the slot elsewhere, and no graph ever holds an address of one.
"""

from collections.abc import Collection, Iterable
from threading import Lock

import torch
from torch import Tensor

from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile
from grace.kernels import DecodeIndex, UserTensors, admission_slot
from grace.model.definition.beam_search import Generated, leaves_of, require_together
from grace.model.definition.inputs import FeatureTensors, SequenceTensors
from grace.model.definition.model import Model
from grace.model.engine.captured_call import CapturedCall, CaptureMemory
from grace.model.engine.fast_generation import FastGeneration
from grace.model.engine.fast_search import FoundNodes
from grace.model.engine.feature_reader import read_inputs
from grace.model.engine.prefix_memo import PrefixMemo

__all__ = ["CapturedGeneration", "copy_features", "features_of_nobody", "one_sid_index"]


class CapturedGeneration:
    """All graphs share their memory, their slot, their inputs and what products work in: one batch
    at a time, in whatever thread and on whatever stream; batches of several streams wait for each
    other on the GPU. So a new snapshot warms up between the batches of those that serve, and a new
    checkpoint beside them, since nothing of its generation is another's."""

    def __init__(
        self,
        model: Model,
        eager: FastGeneration,
        buckets: Collection[int],
        profiles: Iterable[BeamProfile],
    ) -> None:
        """Records everything, from any thread: seconds, while which others may use the GPU."""
        self._eager = eager
        self._slot = admission_slot(eager.ops)
        self._memory = CaptureMemory(eager.device)
        self._lock = Lock()
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._inputs: dict[int, FeatureTensors] = {}
        self._calls: dict[tuple[int, BeamProfile], CapturedCall[FoundNodes]] = {}
        index = one_sid_index(eager.vocab_sizes, eager.device)
        widest_first = sorted(set(profiles), key=lambda profile: -sum(profile.beams))
        for profile in widest_first:
            require_together(eager.vocab_sizes, index, profile)
        for bucket in sorted(set(buckets), reverse=True):
            features = features_of_nobody(model, bucket, eager.dtype)
            self._inputs[bucket] = features
            users = _users_without_anything(bucket, eager.device)
            self._slot.point_at(users, index)
            for profile in widest_first:
                self._calls[bucket, profile] = self._recorded(features, profile)
        self._done.record(torch.cuda.current_stream(eager.device))

    @property
    def memo(self) -> PrefixMemo:
        return self._eager.memo

    @torch.inference_mode()
    def generate(
        self,
        features: FeatureTensors,
        users: UserTensors,
        index: DecodeIndex,
        profile: BeamProfile,
    ) -> Generated:
        require_together(self._eager.vocab_sizes, index, profile)
        bucket = len(users.bitmask)
        call = self._calls.get((bucket, profile))
        if call is None:
            raise ConfigError(
                f"a batch of {bucket} with beams {list(profile.beams)} was not captured: buckets "
                f"{sorted(self._inputs)}; give the profile when generation is made"
            )
        with self._lock:
            stream = torch.cuda.current_stream(self._eager.device)
            stream.wait_event(self._done)
            try:
                self._slot.point_at(users, index)
                copy_features(features, self._inputs[bucket])
                call.replay()
                found = call.result
                return Generated(
                    leaves_of(found.nodes, index), found.scores.clone(), found.corrupt.clone()
                )
            finally:  # whatever was queued, the next batch comes after it
                self._done.record(stream)

    def _recorded(self, features: FeatureTensors, profile: BeamProfile) -> CapturedCall[FoundNodes]:
        return CapturedCall(lambda: self._eager.search(features, self._slot, profile), self._memory)


def features_of_nobody(model: Model, batch: int, dtype: torch.dtype) -> FeatureTensors:
    """Of requests that give nothing: what every batch of this size has the shapes of."""
    device = model.decoder.start.device
    inputs = read_inputs(model.spec, [], batch).to(device)
    with torch.inference_mode():
        features = model.features(inputs)
        single = features.non_sequence
        return FeatureTensors(
            None if single is None else _own(single.to(dtype)),
            tuple(SequenceTensors(_own(s.states.to(dtype)), s.mask) for s in features.sequences),
        )


def _own(tensor: Tensor) -> Tensor:
    """Not a view of a weight that is the same for every request."""
    return tensor.clone(memory_format=torch.contiguous_format)


def copy_features(source: FeatureTensors, place: FeatureTensors) -> None:
    """Without waiting; a copy casts."""
    if (source.non_sequence is None) != (place.non_sequence is None) or len(
        source.sequences
    ) != len(place.sequences):
        raise ValueError("features must be those of the model that generation was made for")
    pairs: list[tuple[str, Tensor, Tensor]] = []
    if source.non_sequence is not None and place.non_sequence is not None:
        pairs.append(("features.non_sequence", source.non_sequence, place.non_sequence))
    for i, (one, other) in enumerate(zip(source.sequences, place.sequences, strict=True)):
        pairs.append((f"features.sequences[{i}].states", one.states, other.states))
        pairs.append((f"features.sequences[{i}].mask", one.mask, other.mask))
    for name, given, kept in pairs:
        if given.shape != kept.shape:  # a copy would spread one row over all
            raise ValueError(f"{name} must be {list(kept.shape)}, got {list(given.shape)}")
    # In one call: each gives the interpreter's lock away, and may have to wait for it.
    torch._foreach_copy_(
        [kept for _, _, kept in pairs], [given for _, given, _ in pairs], non_blocking=True
    )


def one_sid_index(vocab_sizes: tuple[int, ...], device: torch.device) -> DecodeIndex:
    """A catalogue of one SID without matchers, to run with before there is any."""
    length = len(vocab_sizes)
    return DecodeIndex(
        vocab_sizes=vocab_sizes,
        first_leaf=length,
        node_offsets=torch.arange(length + 1, dtype=torch.int32, device=device),
        csr_tokens=torch.zeros(length, dtype=torch.int32, device=device),
        bitmask_index=None,
        bitmask_table=None,
        blooms=(),
    )


def _users_without_anything(batch: int, device: torch.device) -> UserTensors:
    return UserTensors(torch.zeros((batch, 1), dtype=torch.int64, device=device), ())
