"""The pair that a batch is bound to: a snapshot and a model that go together, on one device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from grace.configs.arrays import Int64
from grace.configs.eligibility import Eligibility
from grace.configs.errors import ConfigError
from grace.configs.generation import GenerationConfig
from grace.configs.machine import available_cores
from grace.configs.options import Fp8Product
from grace.configs.serving import LimitsConfig, PrecisionSetting, ServingConfig
from grace.index.allocation import mapped_memory
from grace.index.matchers.derive import derive
from grace.index.matching.exact import ExactMatcher
from grace.index.snapshot import Snapshot
from grace.index.storage import root_of
from grace.index.storage.reader import open_snapshot, read_snapshot
from grace.index.updates.live_ads import LiveAds
from grace.index.users.user_rows import UserEncoder
from grace.kernels import DecodeIndex, Ops, UserTensors, load_ops, require_fp8, with_eligible
from grace.model.checkpoints.checkpoint import checkpoint_id, load_checkpoint, require_match
from grace.model.definition.spec import ModelSpec
from grace.model.engine.device_copy import Blocks
from grace.model.engine.families import generation_for
from grace.model.engine.feature_stage import FeatureStage, feature_stage_for
from grace.model.engine.generation import EngineSettings, Generation
from grace.model.engine.precision import PRECISIONS, Precision
from grace.server.engine.memory import (
    EligibilityFacts,
    eligibility_facts,
    require_memory,
    require_memory_of_model,
)

MOST_PLACES = 2**31 - 1
"""The limit of int32, which numbers the tokens of a batch's beam rows, and the ids of its bags."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """How generation runs, as the log and GetStatus report it."""

    precision: Precision
    fp8_products: tuple[Fp8Product, ...]  # those of the decoder that compute with e4m3
    memo_steps: int  # the first steps, which look prefixes up; none on a CPU
    memo_bytes: int  # the size of their tables
    next_memo_bytes: int  # the size of the next step's tables; 0 if there is no next step
    graphs: int  # recorded on a GPU, one for each batch size and beam profile
    capture_seconds: float  # for folding the weights, the memo and all graphs


@dataclass(frozen=True, eq=False)
class ServingModel:
    """A checkpoint on a device, ready to run for any number of snapshots."""

    spec: ModelSpec
    checkpoint: str  # its id
    folder: Path  # where it was loaded from
    device: torch.device
    features: FeatureStage
    blocks: Blocks  # that batches are read into; they keep what `features` has prepared
    ops: Ops
    generation: Generation
    engine: EngineFacts


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """The changes of ads that a snapshot has in addition to those of its version."""

    sequence: int  # of the last update whose changes it has
    # ascending ids: of ads that it has from puts, and of ads that updates removed from it
    put: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    removed: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    # kept puts that it cannot take: their faults, by ad id
    refused: Mapping[int, str] = field(default_factory=dict)

    @property
    def changes(self) -> int:
        return len(self.put) + len(self.removed)


@dataclass(frozen=True, eq=False)
class ServingPair:
    """Lives as long as the server or a batch refers to it."""

    snapshot: Snapshot
    model: ServingModel
    index: DecodeIndex
    users: UserEncoder
    matcher: ExactMatcher
    live: LiveAds
    eligibility: EligibilityFacts
    shown: Shown = field(default_factory=lambda: Shown(0))

    @property
    def checkpoint(self) -> str:
        return self.model.checkpoint

    @property
    def device(self) -> torch.device:
        return self.model.device

    def with_eligible(self, users: UserTensors) -> UserTensors:
        """Return the users with what decoding tests in mode `exact`, after all stops so far."""
        self.live.pass_pairs(self.index.write_pairs)
        return with_eligible(users, self.index, self.model.ops)


def unchanged(snapshot: Snapshot) -> tuple[Snapshot, Shown]:
    """Return a version's own snapshot. It has the changes up to its watermark."""
    return snapshot, Shown(snapshot.facts.updates_watermark)


def load_pair(
    config: ServingConfig,
    device: torch.device,
    version: int | None = None,
    changed: Callable[[Snapshot], tuple[Snapshot, Shown]] = unchanged,
) -> ServingPair:
    """Load a snapshot, the current one without a `version`, and the configuration's checkpoint."""
    snapshot, shown = changed(load_version(config, version, device, available_cores()))
    return serving_pair(snapshot, load_model(config, snapshot, device), config, shown)


def load_version(
    config: ServingConfig,
    version: int | None,
    device: torch.device,
    threads: int,
    readers: int | None = None,
) -> Snapshot:
    """Load a verified snapshot if there is memory for it, and derive what the mode reads."""
    eligibility = Eligibility.of(config.eligibility)
    snapshots = config.snapshots if version is None else root_of(config.snapshots)
    with open_snapshot(snapshots, version) as opened:
        eligibility.require_length(len(opened.manifest.vocab_sizes))
        require_memory(opened.manifest, eligibility, device, config.generation.max_batch)
        facts = read_snapshot(opened, threads, mapped_memory, readers)
    return derive(facts, eligibility, threads, mapped_memory)


def load_model(config: ServingConfig, snapshot: Snapshot, device: torch.device) -> ServingModel:
    """Load and prepare the checkpoint, which must be of the snapshot's SID space."""
    checkpoint, generation = config.checkpoint, config.generation
    engine = engine_settings(config, device)
    require_memory_of_model(config, engine.precision, device)
    # The features' tables, most of a large model, are rounded at once; the rest is folded first.
    loaded = load_checkpoint(checkpoint, device, features=PRECISIONS[engine.precision])
    require_match(loaded.spec, snapshot, checkpoint)
    generation.require_steps(loaded.spec.sid_length)
    generation.require_vocabulary(loaded.spec.vocab_sizes)
    require_numbered_places(generation, loaded.spec.vocab_sizes, device)
    ops = load_ops(device)
    begin = perf_counter()
    features = feature_stage_for(loaded, PRECISIONS[engine.precision])
    made = generation_for(loaded, ops, engine, generation, features)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = perf_counter() - begin
    model = ServingModel(
        spec=loaded.spec,
        checkpoint=checkpoint_id(checkpoint),
        folder=checkpoint,
        device=device,
        features=features,
        blocks=Blocks(device),
        ops=ops,
        generation=made,
        engine=engine_facts(made, engine.precision, seconds),
    )
    del loaded
    if device.type == "cuda":
        torch.cuda.empty_cache()  # generation and features have copied the weights
    return model


def serving_pair(
    snapshot: Snapshot, model: ServingModel, config: ServingConfig, shown: Shown | None = None
) -> ServingPair:
    """`shown` is what the snapshot has in addition to its version, if it has anything."""
    max_batch = config.generation.max_batch
    index = DecodeIndex.of(snapshot, model.device)
    users = UserEncoder.of(snapshot)
    return ServingPair(
        snapshot=snapshot,
        model=model,
        index=index,
        users=users,
        matcher=ExactMatcher(snapshot, config.threads.post),
        live=LiveAds(snapshot),
        eligibility=eligibility_facts(snapshot, index, users, model.ops, max_batch),
        shown=unchanged(snapshot)[1] if shown is None else shown,
    )


def changed_pair(
    served: ServingPair, snapshot: Snapshot, shown: Shown, config: ServingConfig
) -> ServingPair:
    """Return the pair of a snapshot that changes of ads have made. It keeps what did not change."""
    same_values = served.users.set_values is snapshot.set_values
    return replace(
        served,
        snapshot=snapshot,
        index=DecodeIndex.of(snapshot, served.device),
        users=served.users if same_values else UserEncoder.of(snapshot),
        matcher=ExactMatcher(snapshot, config.threads.post),
        live=LiveAds(snapshot),
        shown=shown,
    )


def engine_facts(made: Generation, precision: Precision, seconds: float) -> EngineFacts:
    memo = made.memo
    return EngineFacts(
        precision=precision,
        fp8_products=made.fp8_products,
        memo_steps=0 if memo is None else memo.steps,
        memo_bytes=0 if memo is None else memo.size,
        next_memo_bytes=0 if memo is None else memo.next_size,
        graphs=made.graphs,
        capture_seconds=seconds if made.graphs else 0.0,
    )


def engine_settings(config: ServingConfig, device: torch.device) -> EngineSettings:
    precision = precision_of(config.precision, device)
    return EngineSettings(precision, config.memo_bytes, config.fp8_keep)


def precision_of(setting: PrecisionSetting, device: torch.device) -> Precision:
    """Return the precision that the setting means; refuse one that the device lacks."""
    if setting == "auto":
        return "fp32" if device.type == "cpu" else "bf16"
    if device.type == "cpu" and setting != "fp32":
        raise ConfigError(f"precision: {setting} needs a GPU; on device {device} use fp32 or auto")
    if setting == "fp8":
        require_fp8(device)
    return setting


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
                f"{rows * widest} places, and a GPU can number {MOST_PLACES}; give fewer beams or "
                "a smaller max_batch"
            )


def require_numbered_ids(limits: LimitsConfig, generation: GenerationConfig) -> None:
    """Require that int32 can number a batch's ids: one a byte, and half is left for defaults."""
    most = MOST_PLACES // 2 // generation.max_batch
    if limits.message_bytes > most:
        raise ConfigError(
            f"limits.message_bytes: {limits.message_bytes}, at most {most} with "
            f"generation.max_batch {generation.max_batch}, since int32 numbers all ids of a batch: "
            "lower either of them"
        )
