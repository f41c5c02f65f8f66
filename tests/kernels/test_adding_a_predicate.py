"""docs/adding-a-predicate.md: its code runs, and decides as plain Python sets do."""

import re
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
import torch

from grace.configs.eligibility import MatcherMode
from grace.kernels import REFERENCE, Ops, UserTensors, load_ops, with_eligible
from grace.kernels.eligibility.eligible_nodes import eligible_at
from support.decode_cases import CPU, branching_case, decode_case
from support.oracle import eligible_prefixes


@pytest.fixture(scope="module")
def page(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the page's Python code defines."""
    text = (repository / "docs" / "adding-a-predicate.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    script = tmp_path_factory.mktemp("page") / "page.py"
    script.write_text("".join(blocks))
    return run_path(str(script))


@pytest.mark.parametrize("ops", [REFERENCE, load_ops(CPU)], ids=["reference", "native"])
def test_ads_with_hours_are_eligible_at_these_hours_only(page: dict[str, Any], ops: Ops) -> None:
    rng = np.random.default_rng(8)
    case = branching_case(rng, 111, 17)
    ads_of_one_rule = tuple(replace(ad, clauses=()) for ad in case.ads)
    made = decode_case(replace(case, ads=ads_of_one_rule), MatcherMode.EXACT)
    ads, trie = made.snapshot.ads, made.snapshot.trie
    shifts = [frozenset(range(24)), frozenset(range(9, 17)), frozenset({0, 23})]
    table = torch.tensor([sum(1 << hour for hour in shift) for shift in shifts]).int()
    shift_of_rule = rng.integers(len(shifts), size=made.snapshot.rules.num_rules, dtype=np.int32)
    hours = rng.integers(24, size=17, dtype=np.int32)

    asked = made.users.asked
    hours_of_ads = page["HoursPredicate"](torch.from_numpy(shift_of_rule), len(asked), table)
    index = page["with_hours"](made.index, hours_of_ads)
    users = UserTensors((*asked, page["AskedHours"](torch.from_numpy(hours))))
    eligible = with_eligible(users, index, ops).eligible
    assert eligible is not None

    for request, (user, hour) in enumerate(zip(made.case.users, hours.tolist(), strict=True)):
        rule_of = {ad.ad_id: ads.ad_rule[ads.ordinals([ad.ad_id])[0]] for ad in made.case.ads}
        running = [ad for ad in made.case.ads if hour in shifts[shift_of_rule[rule_of[ad.ad_id]]]]
        prefixes = eligible_prefixes(made.case.schema, running, user)
        found = eligible_at(eligible, request, index).nonzero().flatten().tolist()
        assert found == sorted(trie.walk(prefix) for prefix in prefixes)
