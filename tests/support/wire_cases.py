"""Features as bytes, written in all the ways in which protobuf lets them be written."""

import struct
from collections.abc import Callable, Mapping, Sequence
from random import Random

from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DenseInput,
    InputSpec,
    ModelSpec,
    SequenceInput,
)
from support.encoder_cases import INTERFORMER, T5

_LONGEST_LENGTH = 5
"""Bytes of a length that protobuf takes, however small the number in them."""

NAMES = ("hour", "device", "pages", "clicks", "rates", "größe", "a", "b", "action", "x" * 40)


def random_spec(random: Random) -> ModelSpec:
    if random.random() < 0.15:
        return T5
    inputs: dict[str, InputSpec] = {}
    for name in random.sample(NAMES, random.randint(1, 7)):
        inputs[name] = random_input(random)
    return ModelSpec("test", (7, 5, 11), inputs, INTERFORMER.encoder, INTERFORMER.decoder)


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


def random_wire(random: Random, spec: ModelSpec, flaws: float = 0.0) -> bytes:
    """Of every declared input or not; with `flaws`, that share of them is not as the model wants.

    Without flaws it is what clients send: each name once, and values that the model takes.
    """
    entries = []
    kinds: list[Mapping[str, InputSpec]]
    kinds = [spec.dense, spec.categorical, spec.bags, spec.sequences]
    for number, declared in enumerate(kinds, start=1):
        for name, value in declared.items():
            if random.random() < 0.15:
                continue
            message = _input(random, spec, value, flaws)
            of_kind = random.randint(1, 4) if random.random() < flaws / 4 else number
            entries.append(
                random_field(random, of_kind, _entry(random, name, message, flaws), flaws)
            )
            if random.random() < flaws / 4:
                entries.append(entries[0])
    while random.random() < 0.2:
        entry = _entry(random, random.choice(("mood", "", "a.b")), b"", flaws)
        entries.append(random_field(random, random.randint(1, 4), entry, flaws))
    random.shuffle(entries)
    return b"".join(entries)


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


def written(
    random: Random,
    number: int,
    values: Sequence[float],
    encode: Callable[[float], bytes],
    kind: int,
) -> list[bytes]:
    """A repeated field in pieces, packed or one by one."""
    pieces = []
    at = 0
    while at < len(values):
        if random.random() < 0.25:
            pieces.append(varint(number << 3 | kind) + encode(values[at]))
            at += 1
        else:
            end = len(values) if random.random() < 0.8 else random.randint(at, len(values))
            pieces.append(random_field(random, number, b"".join(map(encode, values[at:end]))))
            at = end
    if not values and random.random() < 0.3:
        pieces.append(random_field(random, number, b""))
    return pieces


def field(number: int, content: bytes, length_bytes: int = 1) -> bytes:
    """Return a text, message or packed list after its length, which has at least `length_bytes`."""
    length = varint(len(content))
    length = varint(len(content), max(0, length_bytes - len(length)))
    return varint(number << 3 | 2) + length + content


def random_field(random: Random, number: int, content: bytes, flaws: float = 0.0) -> bytes:
    """Behind a length in more bytes than it needs, now and then; with flaws, in too many."""
    if random.random() < flaws / 8:
        return field(number, content, random.randint(_LONGEST_LENGTH + 1, 10))
    return field(number, content, random.choice((1, 1, 1, 1, 2, _LONGEST_LENGTH)))


def _entry(random: Random, name: str, message: bytes, flaws: float) -> bytes:
    parts = [random_field(random, 1, name.encode(), flaws), random_field(random, 2, message, flaws)]
    if random.random() < 0.3:
        parts.reverse()
    if random.random() < flaws / 4:
        parts.append(random.choice(parts))
    if not message and random.random() < 0.3:
        return parts[0]
    return b"".join(parts)


def _input(random: Random, spec: ModelSpec, value: InputSpec, flaws: float) -> bytes:
    wrong = random.random() < flaws
    empty = random.random() < 0.2
    if isinstance(value, DenseInput):
        size = random.randint(0, 4) if wrong else value.size
        numbers = [random.choice((0.0, -3.25, random.uniform(-99, 99))) for _ in range(size)]
        return b"".join(written(random, 1, [] if empty else numbers, _float, 5))
    if isinstance(value, CategoricalInput):
        bound = 2**63 if wrong else value.cardinality
        ids = [random.randrange(bound) for _ in range(2 if wrong and random.random() < 0.5 else 1)]
    elif isinstance(value, BagInput):
        ids = [random.randint(-(2**63), 2**63 - 1) for _ in range(random.randint(0, 7))]
    else:
        return _events(random, spec, value, wrong)
    return b"".join(_integers(random, 1, [] if empty else ids))


def _events(random: Random, spec: ModelSpec, value: SequenceInput, wrong: bool) -> bytes:
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
    fields = [*_integers(random, 1, tokens), *_integers(random, 2, times)]
    if random.random() < 0.1:
        side["price"] = [1]
    for name, ids in side.items():
        entry = _entry(random, name, b"".join(_integers(random, 1, ids)), 0.1 * wrong)
        fields.insert(random.randint(0, len(fields)), random_field(random, 3, entry, 0.1 * wrong))
    return b"".join(fields)


def _integers(random: Random, number: int, values: Sequence[int]) -> list[bytes]:
    more = random.choice((0, 0, 0, 1, 9))
    return written(random, number, values, lambda value: varint(int(value), more), 0)


def _float(value: float) -> bytes:
    return struct.pack("<f", value)
