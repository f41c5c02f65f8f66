"""A request's user as bytes, written in all the ways in which protobuf lets it be written."""

from random import Random

from support.wire_cases import random_field

SHORT = ("US", "NO", "f", "m", "?", "", "é", "ß" * 30, "x" * 17, "v64", "中" * 20)


def random_user_wire(
    random: Random, names: tuple[str, ...], values: tuple[str, ...], flaws: float = 0.0
) -> bytes:
    """Entries of field 4; with `flaws`, that share of them is not as clients send them."""
    entries = []
    for name in names:
        if random.random() < 0.2:
            continue
        entry = _entry(random, name, values, flaws)
        entries.append(entry)
        if random.random() < flaws / 4:
            entries.append(_entry(random, name, values, 0.0))
    while random.random() < 0.2:
        entries.append(_entry(random, random.choice(("mood", "", "größe")), values, flaws))
    random.shuffle(entries)
    return b"".join(entries)


def random_value(random: Random, values: tuple[str, ...]) -> str:
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(SHORT)
    if kind == 1:
        return "".join(random.choices("aé中😀", k=random.randint(0, 30)))
    if kind == 2:
        return "x" * random.randint(0, 128)
    return random.choice(values)


def _entry(random: Random, name: str, values: tuple[str, ...], flaws: float) -> bytes:
    count = random.choice((0, 1, 1, 2, 5))
    texts = [random_value(random, values).encode() for _ in range(count)]
    if texts and random.random() < flaws:
        texts[0] = random.choice((b"*", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"y" * 129))
    values_message = b"".join(random_field(random, 1, each, flaws) for each in texts)
    parts = [
        random_field(random, 1, name.encode(), flaws),
        random_field(random, 2, values_message, flaws),
    ]
    if random.random() < 0.3:
        parts.reverse()
    if not texts and random.random() < 0.3:
        parts = parts[:1] if parts[0][0] == 0x0A else parts[1:]
    if random.random() < flaws / 4:
        parts.append(random.choice(parts))
    return random_field(random, 4, b"".join(parts), flaws)
