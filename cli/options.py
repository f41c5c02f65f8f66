"""Options that several commands share, and how an id is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from grace.configs.errors import InputError
from grace.configs.options import Option

if TYPE_CHECKING:
    from grace.client import Tls
    from grace.index.tables.ids import DataIds

DAY = 86_400
"""The longest wait, in seconds. gRPC treats a wait of many years as one that has already ended."""

AsJson: TypeAlias = Annotated[bool, Option("Print JSON, for scripts.", name="--json")]
Force: TypeAlias = Annotated[bool, "Replace existing files."]
NewCheckpoint: TypeAlias = Annotated[Path, Option("Folder of the new checkpoint.", is_new=True)]
Data: TypeAlias = Annotated[
    Path | None, Option("Data folder with the id maps of the ids that you give.", "FOLDER")
]
Dtype: TypeAlias = Annotated[Literal["float32", "bfloat16", "float16"], "Type of the weights."]


@dataclass(frozen=True, slots=True)
class Connection:
    """The options of every command that calls a server."""

    address: Annotated[str, "HOST:PORT of the server."] = "127.0.0.1:50051"
    tls_ca: Annotated[
        Path | None, "PEM file of the CA that signed the server's certificate; turns TLS on."
    ] = None
    tls_certificate: Annotated[
        Path | None, "PEM file of your certificate, for a server that requires one."
    ] = None
    tls_key: Annotated[Path | None, "PEM file of the key of --tls-certificate."] = None
    timeout: Annotated[float, Option("Seconds to wait for the reply.", least=0.001, most=DAY)] = (
        10.0
    )
    as_json: AsJson = False

    def tls(self) -> "Tls | None":
        from grace.client import tls_of

        return tls_of(self.tls_ca, self.tls_certificate, self.tls_key)


def data_ids(data: Path | None) -> "DataIds | None":
    from grace.index.tables.ids import DataIds

    return None if data is None else DataIds(data)


def number_of(level: str, text: str, ids: "DataIds | None") -> int:
    from grace.index.tables.item_numbers import integer_id

    number = integer_id(text) if ids is None else ids.number(level, text)
    if number is None:
        remedy = "give --data FOLDER if its id map numbers this one"
        raise InputError(f"{level} {text!r}: ids are 0 to 2^63 - 1; {remedy}")
    return number
