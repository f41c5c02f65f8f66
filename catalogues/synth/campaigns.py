"""Campaigns: the rules that advertisers write once and use for many ads."""

from dataclasses import dataclass

import numpy as np

from grace.catalogues.synth.arrays import Int32Array, Int64Array, frozen
from grace.catalogues.synth.attribute_rules import attribute_columns
from grace.catalogues.synth.background import OPEN_CAMPAIGN, make_background
from grace.catalogues.synth.places import Places
from grace.catalogues.synth.rules import RuleColumn
from grace.catalogues.synth.set_rules import audience_columns, location_columns
from grace.catalogues.synth.sid_tree import SidTree
from grace.catalogues.synth.spec import CatalogueSpec, TargetingKnobs


@dataclass(frozen=True, slots=True)
class Campaigns:
    """`columns` are in the order of schema.RULE_COLUMNS; all arrays are [campaigns]."""

    columns: tuple[RuleColumn, ...]
    topic: Int64Array
    city: Int64Array  # where the campaign is at home, targeted there or not
    brand_campaigns: Int64Array  # [brands + 1] offsets into the campaigns

    def __len__(self) -> int:
        return len(self.city)

    def column(self, name: str) -> RuleColumn:
        return next(column for column in self.columns if column.name == name)

    def rule(self, campaign: int) -> dict[str, list[str]]:
        """The lists of one campaign by column; columns without a rule are absent."""
        return {
            column.name: column.lists.strings(column.choice[campaign])
            for column in self.columns
            if column.choice[campaign] >= 0
        }

    def distinct_rules(self) -> int:
        choices = np.stack([column.choice for column in self.columns], axis=1)
        rows = np.ascontiguousarray(choices).view(f"V{choices.shape[1] * choices.itemsize}")
        return len(np.unique(rows))


def make_campaigns(
    spec: CatalogueSpec, tree: SidTree, places: Places, rng: np.random.Generator
) -> Campaigns:
    knobs = spec.targeting
    background = make_background(tree, places, knobs, rng)
    columns = (
        *attribute_columns(background, knobs, rng),
        *location_columns(background, places, knobs, rng),
        *audience_columns(background, spec.lookalikes, knobs, rng),
    )
    return Campaigns(
        columns, frozen(background.topic), frozen(background.city), background.brand_campaigns
    )


def campaigns_of_ads(
    campaigns: Campaigns,
    tree: SidTree,
    ad_line: Int64Array,
    knobs: TargetingKnobs,
    rng: np.random.Generator,
) -> Int32Array:
    """Most ads of a product line share its main campaign; others use a sibling's, a few none."""
    first = campaigns.brand_campaigns[:-1]
    count = np.diff(campaigns.brand_campaigns)
    line_brand, ad_brand = tree.line_brand, tree.line_brand[ad_line]
    main = first[line_brand] + rng.integers(count[line_brand])
    sibling = first[ad_brand] + rng.integers(count[ad_brand])
    kind = rng.random(len(ad_line))
    chosen = np.where(kind < knobs.main_campaign, main[ad_line], sibling)
    chosen[kind >= 1.0 - knobs.open_ads] = OPEN_CAMPAIGN
    return frozen(chosen.astype(np.int32))
