"""Generation with a causal model on a GPU: it reads prompts, then searches with beams.

The shapes of reading depend on a batch's number of tokens, those of searching on its requests and
profile. So each has separate graphs. Both use one memory with the keys and values of prompts.
"""

from functools import partial

import torch
from torch import Tensor

from grace.configs.generation import BeamProfile, GenerationConfig
from grace.kernels import AdmissionSlot, Ops
from grace.model.definition.beam_search import Generated
from grace.model.definition.inputs import map_tensors
from grace.model.definition.model import CausalModel
from grace.model.engine.causal.decoder import CausalSteps, PromptRoom, read_prompts
from grace.model.engine.causal.weights import CausalWeights, rounded_causal
from grace.model.engine.cuda_graphs import GraphedCall, GraphMemory
from grace.model.engine.fast_search import search
from grace.model.engine.feature_stage import Features, PlacedPrompts
from grace.model.engine.generation import EngineSettings, SearchTask

_LEAST_STEP = 64  # tokens


def token_buckets(config: GenerationConfig, longest: int) -> tuple[int, ...]:
    """Return the numbers of tokens that the engine reads: full batches of the longest prompts, and
    sizes between. At most 63 rows or an eighth of them are empty."""
    sizes, size = {batch * longest for batch in config.batch_buckets}, _LEAST_STEP
    while size < config.max_batch * longest:
        sizes.add(size)
        size += max(_LEAST_STEP, 1 << (size.bit_length() - 1) >> 3)
    return tuple(sorted(sizes))


class CausalGeneration:
    """An engine that copies the model's weights, and keeps the copies on their device.

    It has room for one batch's prompts. So only one batch runs at a time, with or without graphs.
    """

    memo = None

    def __init__(
        self, model: CausalModel, ops: Ops, settings: EngineSettings, config: GenerationConfig
    ) -> None:
        precision, kept = settings.precision, settings.fp8_keep
        weights = self._weights = CausalWeights.of(model.decoder, precision, kept)
        self.device, self.vocab_sizes, self.ops = weights.device, weights.vocab_sizes, ops
        longest = model.spec.prompt.max_tokens
        self._buckets = token_buckets(config, longest)
        self._room = PromptRoom.of(weights, config.max_batch, longest)
        self._reads: dict[int, GraphedCall[None]] = {}
        self.fp8_products = rounded_causal(precision, kept)
        # Each addition rounds again the rows that outgrew their scales, so it clips nothing.
        self.fp8_clipped = 0
        self.clipped: Tensor | None = None

    @property
    def graphs(self) -> int:
        return len(self._reads)

    def recorded(self, _: object, bucket: int, memory: GraphMemory) -> int:
        """Record the graphs that read prompts, once. A search's input is its number of requests."""
        if not self._reads:
            for tokens in reversed(self._buckets):
                self._reads[tokens] = GraphedCall(partial(self._read, tokens), memory, warm_ups=1)
        return bucket

    def place(self, bucket: int, prompts: Features) -> None:
        """Read a batch's prompts, before a graph searches with them."""
        tokens = self._placed(prompts, bucket)
        self._reads[tokens].replay()

    @torch.inference_mode()
    def search(self, bucket: int, slot: AdmissionSlot, profile: BeamProfile) -> Tensor:
        return self._search(bucket, slot, profile, self.ops).packed()

    @torch.inference_mode()
    def generate(self, prompts: Features, task: SearchTask) -> Generated:
        slot, ops = task.begin(self.vocab_sizes, self.ops)
        batch = len(task.users.bitmask)
        self._read(self._placed(prompts, batch))
        return map_tensors(self._search(batch, slot, task.profile, ops), torch.Tensor.cpu)

    def _placed(self, prompts: Features, batch: int) -> int:
        """Copy prompts to the room. Return the smallest number of tokens that holds them."""
        if not isinstance(prompts, PlacedPrompts):
            raise ValueError("features must be prompts, which a causal model's stage reads")
        if len(prompts) != batch:
            raise ValueError(f"features must be of {batch} requests, got {len(prompts)}")
        self._room.place(prompts.values, prompts.offsets, prompts.total)
        return next(size for size in self._buckets if size >= prompts.total)

    def _read(self, tokens: int) -> None:
        read_prompts(self._weights, self._room, tokens, self.ops)

    def _search(self, batch: int, slot: AdmissionSlot, profile: BeamProfile, ops: Ops) -> Generated:
        blocks = batch * sum(profile.beams)
        steps = CausalSteps(self._weights, self._room, batch, blocks, self.ops)
        found = search(steps, batch, slot, profile, ops, self.device)
        return Generated(slot.leaves_of(found.nodes), found.scores, found.corrupt)
