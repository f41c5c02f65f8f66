"""The paper's performance numbers, and this engine's goals, as documents show them."""

from typing import NamedTuple


class PublishedRung(NamedTuple):
    """One rung's P50 and P99 in ms, on a GH200 with batch 16; None: the paper has no such rung."""

    increment: str
    full: tuple[float, float] | None = None
    decoder: tuple[float, float] | None = None
    goal: float | str | None = None  # for the decoder's P50 here
    mfu: float | None = None


LADDER = {
    "L0": PublishedRung("baseline FA2", (214.8, 220.1), (196.7, 197.7)),
    "L1": PublishedRung("+ cross-attention reshape", (86.5, 87.9), (69.3, 69.4)),
    "L2": PublishedRung("+ coalesced self-attention", (38.5, 40.8), (20.3, 20.4)),
    "L3": PublishedRung("+ fused self-attention", (39.3, 45.2), (20.4, 20.5)),
    "L4": PublishedRung("+ paged KV cache", (34.3, 40.5), (17.8, 17.8), 11.5),
    "D0": PublishedRung("L4, dynamic beams", (34.9, 35.8), (15.5, 15.8), 9.5, 0.466),
    "D1": PublishedRung("+ CD + SID-to-ads lookup", (38.9, 40.9), (16.4, 16.5), 9.7),
    "D2": PublishedRung("+ GTM bitmask", (41.4, 45.0), (16.6, 16.8), 9.8),
    "D3": PublishedRung("+ GTM bitmask + Bloom", (51.0, 53.6), (25.0, 27.3), 10.0, 0.288),
    "D4": PublishedRung("D1 + exact eligibility", goal="D1 + 0.05"),
}

# (FA2, FA3) by the name that the variant has here
CROSS_ATTENTION_MS = {"before": (9.6, 6.9), "flash": (0.097, 0.101)}

SELF_ATTENTION_NAMES = {
    "fa2": "fa2", "coalesced": "coalesced", "fused": "fused", "ours": "paged",
    "ours distinct": "paged",
}  # fmt: skip
"""The paper's name of each variant here."""

SELF_ATTENTION_MS = {  # at t = 0, 1, 2, 3
    "fa2": (5.563, 5.565, 5.578, 5.566),
    "coalesced": (0.474, 0.480, 0.488, 0.501),
    "fused": (0.222, 0.223, 0.235, 0.269),
    "paged": (0.216, 0.224, 0.233, 0.238),
}

SELF_ATTENTION_HBM = {"fa2": 2.38, "coalesced": 29.36, "fused": 75.52, "paged": 84.46}
"""At t = 3: % of the peak bandwidth of the GPU's memory."""

ADMISSION_MS = 8.6
"""CD, bitmask and Bloom over all steps: D3 - D1."""

CAUSAL_MS = {
    1: {"NVIDIA": 17.6, "SGLang": 33.5},
    4: {"NVIDIA": 47.7, "SGLang": 102.0},
    8: {"NVIDIA": 93.2, "SGLang": 199.0},
}
"""By batch, on an H100: Qwen3-1.7B, prompts of 1,000 tokens, 256 beams, 3 positions. The numbers
come from the tables of sid-gr-inference, which NVIDIA publishes, and of SGLang."""

CAUSAL_PER_SECOND = 60.0
"""FlashRec on an RTX 5090: Qwen3-0.6B, prompts of 304 tokens, 512 SIDs of 3 positions."""


class PublishedRate(NamedTuple):
    """Requests a second, and the card's rated watts: no system publishes what its card draws."""

    system: str
    card: str
    watts: int
    per_second: float

    def __str__(self) -> str:
        rate = f"{self.per_second:,.0f}/s, {self.per_second / self.watts:.2f}/J"
        return f"{self.system} {rate} on an {self.card}"


SHAPES = {
    ("sid-gr-256", 1): PublishedRate("NVIDIA", "H100", 700, 1 / 21.5e-3),
    ("sid-gr-256", 16): PublishedRate("NVIDIA", "H100", 700, 16 / 23e-3),
    ("sid-gr-2048", 1): PublishedRate("NVIDIA", "H100", 700, 1 / 30.1e-3),
    ("sid-gr-2048", 16): PublishedRate("NVIDIA", "H100", 700, 16 / 80e-3),
    ("GR4AD", 16): PublishedRate("GR4AD", "L20", 275, 500.0),
}
"""By shape and batch. NVIDIA: the latencies of `generate_beam_decode()` in bf16, over histories of
random lengths (recsys-examples, examples/sid_gr/benchmark/RESULTS.md). GR4AD: its service, with 512
beams and 3 positions (arXiv 2602.22732)."""
