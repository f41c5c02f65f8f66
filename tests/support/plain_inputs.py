"""The plain reader of features, from messages to model inputs: C++ is compared with it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from grace.configs.errors import RequestError
from grace.model.definition.causal_spec import CausalModelSpec
from grace.model.definition.inputs import AGE_BUCKETS, JaggedIds, ModelInputs, SequenceEvents
from grace.model.definition.spec import ModelSpec, SequenceInput
from grace.model.definition.t5_spec import EncoderDecoderSpec
from grace.model.engine.feature_reader import FeatureLookups, model_inputs_of
from grace.proto.retrieval_pb2 import Events, Features, RetrieveRequest

NO_AGE = -1
"""Of an event whose request gave no times."""

_FIELDS = {"dense": "dense", "categorical": "categorical", "bag": "bags", "sequence": "sequences"}
"""Where a request has the inputs of each kind."""


def encode_inputs(
    spec: ModelSpec, requests: Sequence[Features], batch: int | None = None
) -> ModelInputs:
    """Return the given requests as one batch, which empty requests fill up to `batch`.

    Raises RequestError, which names the field, if the model cannot read a request.
    """
    size = len(requests) if batch is None else batch
    rows = [filled(spec, each) for each in (*requests, *[Features()] * (size - len(requests)))]
    if isinstance(spec, CausalModelSpec):
        ids = [row.tokens["prompt"].ids for row in rows]
        return ModelInputs(size, (), (), (_jagged(ids),), ())
    return ModelInputs(
        batch=size,
        dense=tuple(
            torch.tensor([list(row.dense[name].values) for row in rows]) for name in spec.dense
        ),
        categorical=tuple(
            _integers(row.categorical[name].ids[0] for row in rows) for name in spec.categorical
        ),
        bags=tuple(
            _bag([row.bags[name].ids for row in rows], bag.hash_rows)
            for name, bag in spec.bags.items()
        ),
        sequences=tuple(
            _events([row.sequences[name] for row in rows], [*declared.side], spec.sid_length)
            for name, declared in spec.sequences.items()
        ),
    )


def filled(spec: ModelSpec, request: Features) -> Features:
    """Return the request with all inputs of the model, and only the newest events of each.

    What a request leaves out is its default. Raises RequestError, naming the field.
    """
    made = Features()
    made.CopyFrom(request)
    for name, numbers in spec.dense.items():
        values, where = made.dense[name].values, f"features.dense.{name}.values"
        for number in values:
            if not isfinite(number):
                raise RequestError(where, f"{number} is not finite")
        if len(values) not in (0, numbers.size):
            raise RequestError(where, f"{len(values)} values, the model takes {numbers.size}")
        if not values:
            values.extend(numbers.default or (0.0,) * numbers.size)
    for name, one in spec.categorical.items():
        ids, where = made.categorical[name].ids, f"features.categorical.{name}.ids"
        if len(ids) > 1:
            raise RequestError(where, f"{len(ids)} ids, the model takes one")
        if not ids:
            ids.append(one.default)
        _require_below((one.cardinality,), [ids], where)
    for name, bag in spec.bags.items():
        if not made.bags[name].ids:
            made.bags[name].ids.extend(bag.default)
    for name, declared in spec.sequences.items():
        _keep_newest(declared, made.sequences[name], f"features.sequences.{name}", spec)
    _make_prompt(spec, request, made)
    ignored_inputs(spec, request)
    return made


def _make_prompt(spec: ModelSpec, request: Features, made: Features) -> None:
    """Of a causal model: the request's tokens, or the newest events between prefix and suffix."""
    if not isinstance(spec, CausalModelSpec):
        return
    prompt, length = spec.prompt, spec.sid_length
    name, where = prompt.history or "", "features.tokens.prompt.ids"
    ids = made.tokens["prompt"].ids
    if len(ids) > prompt.max_tokens:
        fault = f"{len(ids)} ids, the model reads at most {prompt.max_tokens} (prompt.max_tokens)"
        raise RequestError(where, f"{fault}; send fewer")
    given = len(request.sequences[name].sids) if name in request.sequences else 0
    if ids and given:
        fault = f"{given // length} events, and the request has {where}, too; send one of them"
        raise RequestError(f"features.sequences.{name}.sids", fault)
    _require_below((spec.causal.num_tokens,), [[each] for each in ids], where)
    if ids:
        return
    sids = list(made.sequences[name].sids) if name else []
    tokens: list[int] = []
    for at in range(len(sids) - length, -1, -length):  # the newest first
        pairs = zip(spec.tokens_of_codes, sids[at : at + length], strict=True)
        sid = [codes[code] for codes, code in pairs]
        longer = [*prompt.event.before, *sid, *prompt.event.after, *tokens]
        if len(prompt.prefix) + len(longer) + len(prompt.suffix) > prompt.max_tokens:
            break
        tokens = longer
    ids.extend((*prompt.prefix, *tokens, *prompt.suffix))


def _keep_newest(declared: SequenceInput, events: Events, where: str, spec: ModelSpec) -> None:
    """Also give every event an id of each side: one above all others where it is not known."""
    tokens, times, length = list(events.sids), events.timestamps_ms, spec.sid_length
    if len(tokens) % length:
        raise RequestError(f"{where}.sids", f"{len(tokens)} tokens, not a multiple of {length}")
    sids = [tokens[at : at + length] for at in range(0, len(tokens), length)]
    _require_below(spec.vocab_sizes, sids, f"{where}.sids")
    _require_per_event(times, len(sids), f"{where}.timestamps_ms")
    if min(times, default=0) < 0:
        raise RequestError(f"{where}.timestamps_ms", f"{min(times)} is negative")
    old = max(0, len(sids) - declared.max_length)
    for name, cardinality in declared.side.items():
        ids = events.side[name].ids
        _require_per_event(ids, len(sids), f"{where}.side.{name}.ids")
        _require_below((cardinality,), [[each] for each in ids], f"{where}.side.{name}.ids")
        if not ids:
            ids.extend([cardinality] * len(sids))
        del ids[:old]
    del events.sids[: old * length], times[:old]


def ignored_inputs(spec: ModelSpec, request: Features) -> tuple[str, ...]:
    """Return the names that the model lacks, with their kind.

    Raises RequestError, naming the field, if the model reads a name as another kind.
    """
    ignored = []
    fields = {name: _FIELDS[declared.kind] for name, declared in spec.inputs.items()}
    if isinstance(spec, CausalModelSpec):
        fields["prompt"] = "tokens"
    for kind in (*_FIELDS.values(), "tokens"):
        for name in sorted(getattr(request, kind)):
            right = fields.get(name)
            if right is None:
                ignored.append(f"{kind}.{name}")
            elif right != kind:
                raise RequestError(
                    f"features.{kind}.{name}", f"the model reads it as features.{right}.{name}"
                )
    for name, declared in spec.sequences.items():
        if name in request.sequences:
            unknown = request.sequences[name].side.keys() - declared.side.keys()
            ignored += [f"sequences.{name}.side.{side}" for side in unknown]
    return tuple(sorted(ignored))


def bag_row(bag_id: int, hash_rows: int) -> int:
    """The table row of an id: SplitMix64's finaliser, modulo the number of rows."""
    last = (1 << 64) - 1
    mixed = bag_id + 0x9E3779B97F4A7C15 & last
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & last
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & last
    return (mixed ^ mixed >> 31) % hash_rows


def _require_below(bounds: Sequence[int], rows: Sequence[Sequence[int]], where: str) -> None:
    """Column c of the rows holds 0 to bounds[c] - 1."""
    for place, bound in enumerate(bounds):
        for value in (row[place] for row in rows if not 0 <= row[place] < bound):
            what = f"token {value} at position {place} of a SID" if len(bounds) > 1 else value
            raise RequestError(where, f"{what} is not within 0 to {bound - 1}")


def _require_per_event(values: Sequence[int], events: int, where: str) -> None:
    if len(values) not in (0, events):
        raise RequestError(
            where, f"number of values: {len(values)}, of events: {events}; send one for each event"
        )


def _integers(values: Iterable[int]) -> Tensor:
    return torch.tensor([*values], dtype=torch.int64)


def _offsets(lengths: Iterable[int]) -> Tensor:
    return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int64))


def _bag(rows: Sequence[Sequence[int]], hash_rows: int) -> JaggedIds:
    return _jagged([[bag_row(each, hash_rows) for each in row] for row in rows])


def plain_bucket(age: int) -> int:
    """Return 1 + floor(log2(1 + age)), the number of bits of 1 + age, within the buckets."""
    return min((1 + age).bit_length(), AGE_BUCKETS - 1)


def _jagged(rows: Sequence[Sequence[int]]) -> JaggedIds:
    return JaggedIds(_offsets(map(len, rows)), _integers(chain(*rows)))


def _events(rows: Sequence[Events], sides: Sequence[str], sid_length: int) -> SequenceEvents:
    lengths = [len(row.sids) // sid_length for row in rows]
    ages: list[int] = []
    for row, length in zip(rows, lengths, strict=True):
        ages += [max(row.timestamps_ms) - each for each in row.timestamps_ms] or [NO_AGE] * length
    return SequenceEvents(
        offsets=_offsets(lengths),
        sids=_integers(chain(*(row.sids for row in rows))).view(-1, sid_length),
        age_buckets=_integers(map(plain_bucket, ages)),
        side=tuple(_integers(chain(*(row.side[name].ids for row in rows))) for name in sides),
    )


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


def assert_same_inputs(spec: ModelSpec, got: FeatureLookups, expected: ModelInputs) -> None:
    """Require that the rows of a batch stand for these inputs."""
    if (
        isinstance(spec, EncoderDecoderSpec) and spec.encoder.t5 is not None
    ):  # whose features are its tokens alone
        (events,) = expected.sequences
        no_ages = torch.zeros_like(events.age_buckets)
        expected = replace(expected, sequences=(replace(events, age_buckets=no_ages),))
    one, other = dict(named_tensors(model_inputs_of(spec, got))), dict(named_tensors(expected))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def features_message(features: Features) -> bytes:
    return RetrieveRequest(features=features).SerializeToString()
