"""Words made from words: slugs for identifiers, and brand names that no real brand has claimed."""

import unicodedata
from collections.abc import Iterator
from itertools import product

_FIRST = "Ho Na Ta Ve Lu Mi Sa Ko Bre Fa Gri Ja Ke Li Mo Ne O Pa Ri Sti Ul Va Yo Za"
_MIDDLE = "ka lo mi ne ra so ti va ber da fi gu ja ko lan mo nu pe ri sta"
_LAST = "ri da no mar ko len sa va tis ra lund by na rum ta dal vik go mi net"


def _brand_names() -> Iterator[str]:
    for syllables in product(_FIRST.split(), _MIDDLE.split(), _LAST.split()):
        yield "".join(syllables)


BRAND_NAMES = tuple(_brand_names())


def slug(name: str) -> str:
    """`Playa del Carmen` -> `playa-del-carmen`, `Tromsø` -> `tromso`."""
    plain = unicodedata.normalize("NFKD", name.lower().replace("ø", "o").replace("'", ""))
    return plain.encode("ascii", "ignore").decode().replace(" ", "-")
