"""Messages as bytes, written in all the ways in which protobuf lets them be written, and in others.

`request_values` and `update_values` draw what messages say, and `grown` has each field in any size.
A `WireWriter` writes it: fields in any order, lists packed and not, messages in parts, lengths and
numbers in more bytes than they need.
With flaws, there are fields and entries twice, unknown fields, groups, wrong types, lengths in too
many bytes, texts that are not UTF-8, huge numbers, numbers that are not finite, and changed bytes.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, nan
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from grace.index.targeting.schema import TargetingSchema
from grace.model.definition.causal_spec import CausalModelSpec
from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DenseInput,
    InputSpec,
    ModelSpec,
    SequenceInput,
)
from grace.model.definition.t5_spec import EncoderDecoderSpec
from support.causal_cases import random_causal_spec
from support.encoder_cases import INTERFORMER, T5
from support.strict_wire import BYTES, FIXED32, FIXED64, REQUEST, UPDATE, Values, is_map, type_of

_LONGEST_LENGTH = 5
"""Bytes of a length that protobuf takes, however small the number in them."""

NAMES = ("hour", "device", "pages", "clicks", "rates", "größe", "a", "b", "action", "x" * 40)
_OTHER_NAMES = ("mood", "", "a.b", "größe", "a\0b", "x" * 300)
_NUMBERS = (0, 5, 127, 128, 2**31, 2**32 + 3, 2**35 + 1, 2**63 - 1, 2**63, 2**64 - 1)
_FLOATS = (0.0, -0.0, 3.4e38, -3.4e38, 1e-45, float("nan"), float("inf"), -float("inf"))
_TEXTS = (b"", b"*", b"\0", b"a\0b", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"x" * 300)
_UNKNOWN = (5, 6, 7, 13, 17, 18, 63, 2047, 536_870_911)


def hostile_request(random: Random, spec: ModelSpec, schema: TargetingSchema) -> bytes:
    """A grace.v1.RetrieveRequest, or nearly: many flaws seldom leave one."""
    values = request_values(random, spec, schema, wrong=random.choice((0.0, 0.1, 0.4)))
    message = hostile(random, values, REQUEST)
    return with_bytes_changed(random, message) if random.random() < 0.2 else message


def hostile(random: Random, values: Values, of: Descriptor) -> bytes:
    return WireWriter(random, random.choice((0.0, 0.001, 0.01, 0.06))).message(values, of)


class WireWriter:
    """`flaws` is the share of places that have one."""

    def __init__(self, random: Random, flaws: float = 0.0) -> None:
        self._random, self._flaws = random, flaws

    def message(self, values: Mapping[str, Any], of: Descriptor) -> bytes:
        blocks = [self._field(of.fields_by_name[name], value) for name, value in values.items()]
        if self._flawed():
            blocks.append([self._unknown()])
        if blocks and self._flawed():
            blocks.append(self._random.choice(blocks))
        order = [block for block in blocks for _ in block]
        self._random.shuffle(order)
        rest = {id(block): iter(block) for block in blocks}
        message = b"".join(next(rest[id(block)], b"") for block in order)
        return with_bytes_changed(self._random, message) if self._flawed() else message

    def sized(self, number: int, content: bytes) -> bytes:
        """A text, message or packed list after its length, now and then in too many bytes."""
        most = 10 if self._flawed() else _LONGEST_LENGTH
        return field(number, content, self._random.choice((1, 1, 1, 1, 2, most)))

    def _field(self, field: FieldDescriptor, value: Any) -> list[bytes]:
        """The pieces of a field, in their order."""
        inner = field.message_type
        if inner is None:
            return self._list(field, value) if field.is_repeated else [self._tagged(field, value)]
        if is_map(field):
            parts = [{"key": key, "value": each} for key, each in value.items()]
        elif field.is_repeated:
            parts = value
        else:
            keys = list(value)
            cut = self._random.choice((0, 0, 0, 0, self._random.randint(0, len(keys))))
            halves = (keys[:cut], keys[cut:])
            parts = [{key: value[key] for key in half} for half in halves if half]
            if not parts and self._random.random() < 0.5:
                parts = [{}]
        return [self.sized(field.number, self.message(part, inner)) for part in parts]

    def _list(self, field: FieldDescriptor, values: Sequence[Any]) -> list[bytes]:
        """A repeated field in pieces, packed or one by one."""
        if type_of(field) == BYTES:
            return [self._tagged(field, value) for value in values]
        pieces, at = [], 0
        while at < len(values):
            if self._random.random() < 0.25:
                pieces.append(self._tagged(field, values[at]))
                at += 1
            else:
                end = self._random.choice((len(values), self._random.randint(at, len(values))))
                packed = b"".join(self._content(field, value) for value in values[at:end])
                pieces.append(self.sized(field.number, packed))
                at = end
        return pieces or self._random.choice(([], [self.sized(field.number, b"")]))

    def _tagged(self, field: FieldDescriptor, value: Any) -> bytes:
        content = self._content(field, value)
        if type_of(field) == BYTES:
            return self.sized(field.number, content)
        kind = self._random.randrange(6) if self._flawed() else type_of(field)
        return varint(field.number << 3 | kind) + content

    def _content(self, field: FieldDescriptor, value: Any) -> bytes:
        random, flawed = self._random, self._flawed()
        if field.type == field.TYPE_STRING:
            return random.choice(_TEXTS) if flawed else value.encode()
        if type_of(field) in (FIXED32, FIXED64):
            written_as = "<f" if type_of(field) == FIXED32 else "<d"
            return struct.pack(written_as, random.choice(_FLOATS) if flawed else value)
        return varint(random.choice(_NUMBERS) if flawed else value, random.choice((0, 0, 0, 1, 9)))

    def _unknown(self) -> bytes:
        """An unknown field, whose tag has as many bytes as it needs or some more."""
        random = self._random
        number, kind = random.choice(_UNKNOWN), random.choice((0, 0, 1, 2, 2, 3, 4, 5, 6))
        tag = varint(number << 3 | kind, random.choice((0, 0, 0, 1, 4, 9)))
        contents = {0: varint(random.choice(_NUMBERS)), 2: b"\2ab", 3: varint(number << 3 | 4)}
        return tag + contents.get(kind, random.randbytes({1: 8, 5: 4}.get(kind, 0)))

    def _flawed(self) -> bool:
        return self._random.random() < self._flaws


def grown(of: Descriptor, size: int) -> Iterator[Values]:
    """Yield messages of one field, in each of which a number, a text, a list or a name has a size.

    There is one for each field of the message and of those in it: a new field needs no new case.
    """
    text = "é" * (size // 2) + "x" * (size % 2)
    for each in of.fields:
        inner, is_text = each.message_type, each.type == each.TYPE_STRING
        if inner is None:
            values: list[Any] = [text if is_text else size]
            if each.is_repeated:
                values = [["x" if is_text else 1] * size, [text if is_text else 1]]
        elif is_map(each):
            of_one = inner.fields_by_name["value"].message_type
            nothing: Any = 1 if of_one is None else {}
            values = [{f"n{i}": nothing for i in range(size)}, {text: nothing}]
            values += [{"a": value} for value in (() if of_one is None else grown(of_one, size))]
        else:
            values = [[value] if each.is_repeated else value for value in grown(inner, size)]
        yield from ({each.name: value} for value in values)


def random_spec(random: Random) -> ModelSpec:
    family = random.random()
    if family < 0.35:
        return T5 if family < 0.15 else random_causal_spec(random)
    inputs: dict[str, InputSpec] = {}
    for name in random.sample(NAMES, random.randint(1, 7)):
        inputs[name] = random_input(random)
    return EncoderDecoderSpec("test", (7, 5, 11), inputs, INTERFORMER.encoder, INTERFORMER.decoder)


def random_input(random: Random) -> InputSpec:
    kind = random.randrange(4)
    if kind == 0:
        size = random.randint(1, 3)
        default = tuple(float(i) - 1.5 for i in range(size)) if random.random() < 0.5 else ()
        return DenseInput(size, default)
    if kind == 1:
        return CategoricalInput(random.randint(2, 300), default=1)
    if kind == 2:
        return BagInput(random.randint(1, 2**28), (5, -6) if random.random() < 0.3 else ())
    side = {name: random.randint(1, 200) for name in random.sample(NAMES, random.randint(0, 2))}
    return SequenceInput(random.randint(1, 9), side)


def request_values(
    random: Random, spec: ModelSpec, schema: TargetingSchema, wrong: float = 0.0
) -> Values:
    """A request; with `wrong`, that share of its inputs is not as the model wants it."""
    values: Values = {
        "request_id": "r",
        **asked_values(random, schema),
        "features": feature_values(random, spec, wrong),
        "max_ads": 7,
        "priority": "LOW",
        "include_sids": 1,
        "strict": random.randrange(2),
        "exclude_ads": _ids(random),
        "exclude": {_name(random, schema.entities): {"ids": _ids(random)}},
        "at_most": {_name(random, schema.entities): random.choice((0, 3, 2**32 + 7))},
    }
    often = {"user", "filters", "at", "features"}
    return {name: each for name, each in values.items() if name in often or random.random() < 0.2}


def asked_values(random: Random, schema: TargetingSchema, others: Sequence[str] = ("x",)) -> Values:
    """What a request asks of the components: seldom a number where values should be."""
    listed = [attribute.values for attribute in schema.attributes]
    known = [*others, *(value for values in listed for value in (*values[:7], *values[-2:]))]

    def some() -> list[str]:
        return random.choices(known, k=random.choice((0, 1, 1, 2, 5)))

    def of_user(takes_number: bool) -> Values:
        if takes_number ^ (random.random() < 0.03):
            numbers = random.choice(((0.0, -0.0, 34.0, 1e300), (34.0, inf, -inf, nan)))
            return random.choice(({}, *({"number": each} for each in numbers)))
        return {"values": some()}

    def of_filter() -> Values:
        lists = {"any_of": some(), "none_of": some(), "unknown": random.choice((0, 1, 2))}
        return {name: each for name, each in lists.items() if random.random() < 0.6}

    ranges = {each.name for each in schema.ranges}
    properties = {each.name for each in schema.properties}
    takers = [*(each for each in schema.names if each not in properties), *_few(random, properties)]
    return {
        "user": {
            _name(random, [name]): of_user(name in ranges)
            for name in takers
            if random.random() < 0.8
        },
        "filters": {
            _name(random, [name]): of_filter()
            for name in (*properties, *_few(random, schema.names))
            if random.random() < 0.8
        },
        "at": random.choice((0, random.randrange(2**25), *[random.randrange(2**41)] * 5)),
        "utc_offset_minutes": random.choice((-840, -570, 0, 60, 840)) % 2**64,
    }


def _few(random: Random, names: Iterable[str]) -> list[str]:
    return [name for name in sorted(names) if random.random() < 0.1]


def feature_values(random: Random, spec: ModelSpec, wrong: float = 0.0) -> Values:
    kinds = ("dense", "categorical", "bags", "sequences", "tokens")
    features: Values = {kind: {} for kind in kinds}
    if isinstance(spec, CausalModelSpec) and random.random() < 0.5:
        ids = _prompt(random, spec, random.random() < wrong)
        features["tokens"][_name(random, ["prompt"])] = {"ids": ids}
        if random.random() > wrong / 2:
            return features
    for kind in kinds[:-1]:
        for name, declared in getattr(spec, kind).items():
            if random.random() < 0.85:
                is_wrong = random.random() < wrong
                features[kind][_name(random, [name])] = _input(random, spec, declared, is_wrong)
                if random.random() < wrong / 4:
                    features[random.choice(kinds)][name] = {}
    return features


def update_values(random: Random, levels: Sequence[str], ids: Sequence[int]) -> Values:
    def some() -> list[int]:
        return [random.choice(ids) for _ in range(random.choice((0, 1, 2, 9)))]

    def of_levels() -> Values:
        return {random.choice(levels): {"ids": some()} for _ in range(random.choice((0, 1, 3)))}

    def weight() -> Values:
        return {"ad_id": random.randrange(999), "weight": random.choice(_FLOATS[:5])}

    kind = random.choice((*[1] * 9, *[2] * 3, random.choice((0, 3, 2**32 + 1, 2**64 - 1))))
    values: Values = {"sequence": random.choice((0, *ids, *ids)), "kind": kind, "stop": of_levels()}
    if kind == 1 or random.random() < 0.2:
        values |= {"resume": of_levels(), "unweight": random.choice(([], [], some()))}
    return values | {"weights": [weight() for _ in range(random.choice((0, 1, 9)))]}


def hostile_update(random: Random, levels: Sequence[str], ids: Sequence[int]) -> bytes:
    return hostile(random, update_values(random, levels, ids), UPDATE)


def with_bytes_changed(random: Random, message: bytes) -> bytes:
    """One to three changes: another byte, one too many, one missing, an end too soon."""
    changed = bytearray(message)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(changed) + 1)
        kind = random.randrange(5)
        if kind == 0:
            changed[at:at] = bytes([random.randrange(256)])
        elif kind == 1:
            del changed[at : at + random.randint(1, 3)]
        elif kind == 2:
            changed[at : at + 1] = bytes([random.choice((0, 1, 0x7F, 0x80, 0xFF, 0x2A))])
        elif kind == 3 and at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
        elif random.random() < 0.2:
            del changed[at:]
    return bytes(changed)


def varint(value: int, more: int = 0) -> bytes:
    """Of a number of 64 bits, with bytes that it would not need."""
    value %= 2**64
    digits = [value & 0x7F]
    while value := value >> 7:
        digits.append(value & 0x7F)
    digits += [0] * min(more, 10 - len(digits))
    return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])


def field(number: int, content: bytes, length_bytes: int = 1) -> bytes:
    """Return a text, message or packed list after its length, which has at least `length_bytes`."""
    length = varint(len(content))
    length = varint(len(content), max(0, length_bytes - len(length)))
    return varint(number << 3 | 2) + length + content


def _name(random: Random, names: Sequence[str]) -> str:
    return random.choice(_OTHER_NAMES if not names or random.random() < 0.1 else names)


def _ids(random: Random) -> list[int]:
    return [random.choice((*_NUMBERS, 1, 2, 3)) for _ in range(random.choice((0, 1, 3, 9)))]


def _prompt(random: Random, spec: CausalModelSpec, wrong: bool) -> list[int]:
    most, tokens = spec.prompt.max_tokens, spec.causal.num_tokens
    ids = random.choices(range(tokens), k=random.choice((0, 1, most, random.randint(1, most))))
    spoilt = [*ids[1:], random.choice((-1, tokens, 2**32, 2**63 - 1))], ids + [0] * most
    return random.choice(spoilt) if wrong else ids


def _input(random: Random, spec: ModelSpec, value: InputSpec, wrong: bool) -> Values:
    if isinstance(value, SequenceInput):
        return _events(random, spec, value, wrong)
    if isinstance(value, DenseInput):
        size = random.randint(0, 4) if wrong else value.size
        numbers = [random.choice((0.0, -3.25, random.uniform(-99, 99))) for _ in range(size)]
        return {"values": random.choice(([], *[numbers] * 4))}
    if isinstance(value, CategoricalInput):
        bound = 2**63 if wrong else value.cardinality
        ids = [random.randrange(bound) for _ in range(2 if wrong and random.random() < 0.5 else 1)]
    else:
        ids = [random.randint(-(2**63), 2**63 - 1) for _ in range(random.randint(0, 7))]
    return {"ids": random.choice(([], *[ids] * 4))}


def _events(random: Random, spec: ModelSpec, value: SequenceInput, wrong: bool) -> Values:
    events = random.randint(0, 2 * value.max_length)
    tokens = [random.randrange(size) for _ in range(events) for size in spec.vocab_sizes]
    newest = 2 ** random.randint(0, 63) - 1
    times = [random.randint(0, newest) for _ in range(random.choice((0, events)))]
    side = {
        name: [random.randrange(size) for _ in range(random.choice((0, events)))]
        for name, size in value.side.items()
    }
    if wrong:
        spoilt = random.choice((tokens, times, *side.values()))
        spoilt[: random.randint(0, 2)] = [random.choice((-1, 6, 2**32, 2**63 - 1, 2**35 + 1))]
    if random.random() < 0.1:
        side["price"] = [1]
    sides = {name: {"ids": ids} for name, ids in side.items()}
    return {"sids": tokens, "timestamps_ms": times, "side": sides}
