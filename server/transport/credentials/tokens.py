"""The tokens that calls may carry instead of a client certificate."""

from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path

from grace.configs.errors import ConfigError
from grace.configs.pem_files import read_bytes

SCHEME = "bearer"
LEAST_CHARACTERS, MOST_CHARACTERS = 16, 1024
MOST_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Tokens:
    known: tuple[bytes, ...] = field(repr=False)

    def allow(self, authorization: str) -> bool:
        """Return whether a call's header `authorization` is `Bearer TOKEN` with a known token."""
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode(errors="replace")
        # Compare all of them, so that the time does not reveal which one is similar.
        same = [compare_digest(given, each) for each in self.known]
        return scheme.lower() == SCHEME and any(same)


def read_tokens(setting: str, path: Path) -> Tokens:
    """Read one token per line; skip empty lines. Errors name a line, and never show a token."""
    remedy = "give one token per line, such as `openssl rand -hex 32` prints"
    lines = read_bytes(setting, path, remedy).split(b"\n")
    known = []
    for number, line in enumerate(lines, start=1):
        token = line.strip()
        if not token:
            continue
        if not all(0x21 <= byte <= 0x7E for byte in token):
            fault = "has characters that are not allowed in a header"
        elif not LEAST_CHARACTERS <= len(token) <= MOST_CHARACTERS:
            fault = f"has {len(token)} characters, not {LEAST_CHARACTERS} to {MOST_CHARACTERS}"
        else:
            known.append(token)
            continue
        raise ConfigError(f"{setting}: {path}: line {number} {fault}; {remedy}")
    if not known:
        raise ConfigError(f"{setting}: {path}: no token; {remedy}")
    if len(known) > MOST_TOKENS:
        raise ConfigError(
            f"{setting}: {path}: {len(known)} tokens, at most {MOST_TOKENS}; give groups of "
            "clients one token, or use client certificates (listen.tls.client_ca)"
        )
    return Tokens(tuple(known))
