"""The paper's published numbers about its index and decode-time targeting, each with its label.

Matchers are `bitmask` and `bloom`, modes have our names; positions are 0 (root) to 3.
"""

from dataclasses import dataclass

MODE_NAMES = {
    "cd": "CD only",
    "union": "CD+GTM",
    "static": "Static k-way",
    "dynamic": "Dynamic k-way",
}

# Index Summary and GTM matcher storage (tab:index-summary)
SIDS = "30M"
ADS_PER_SID = (1, 2, 11)  # p50, p90, p99
MATCHER_WORDS = {"bitmask": 7, "bloom": 4}
STORAGE_MB = {  # positions 1, 2, 3: before and after deduplication
    "bitmask": ((11, 10), (620, 175), (1645, 228)),
    "bloom": ((6, 5), (354, 112), (940, 162)),
}

# Mean GTM matcher fill rate by decode position (tab:kway-fill)
FILL = {
    ("bitmask", "union"): (0.734, 0.283, 0.139, 0.128),
    ("bitmask", "static"): (0.563, 0.097, 0.010, 0.016),
    ("bitmask", "dynamic"): (0.627, 0.283, 0.142, 0.128),
    ("bloom", "union"): (0.979, 0.475, 0.069, 0.048),
    ("bloom", "static"): (0.933, 0.070, 0.004, 0.006),
    ("bloom", "dynamic"): (0.976, 0.333, 0.080, 0.048),
}


@dataclass(frozen=True, slots=True)
class PassRates:
    """Percent: of all users, of generated ads, of those that passed the bitmask, of generated."""

    users: float
    bitmask: float
    bloom: float
    final: float


# Bucketized ad-level pass rates, by generated ads of a request (tab:kway-pass)
PASS = {
    ("<5k", "cd"): PassRates(50.78, 57.72, 36.09, 20.83),
    ("<5k", "union"): PassRates(31.84, 76.82, 73.33, 56.33),
    ("<5k", "static"): PassRates(31.84, 76.34, 72.90, 55.65),
    ("<5k", "dynamic"): PassRates(31.84, 76.09, 73.44, 55.88),
    ("5k-9.9k", "cd"): PassRates(36.72, 54.91, 39.92, 21.92),
    ("5k-9.9k", "union"): PassRates(39.06, 64.14, 65.17, 41.80),
    ("5k-9.9k", "static"): PassRates(38.09, 64.98, 65.63, 42.65),
    ("5k-9.9k", "dynamic"): PassRates(38.87, 64.58, 64.88, 41.90),
    ("10k+", "cd"): PassRates(12.50, 62.28, 45.95, 28.62),
    ("10k+", "union"): PassRates(29.10, 56.02, 63.46, 35.55),
    ("10k+", "static"): PassRates(30.08, 55.44, 63.29, 35.09),
    ("10k+", "dynamic"): PassRates(29.30, 56.12, 63.67, 35.73),
    ("all", "cd"): PassRates(100.00, 57.81, 40.74, 23.55),
    ("all", "union"): PassRates(100.00, 61.52, 65.70, 40.42),
    ("all", "static"): PassRates(100.00, 61.31, 65.68, 40.27),
    ("all", "dynamic"): PassRates(100.00, 61.58, 65.69, 40.45),
}

FIRST_STEP_BEAMS = 492.6
"""Eligible beams of 512 after the first step, mean ("Beam Search with Dynamic Sizes")."""
