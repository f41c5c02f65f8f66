"""`grace build --onto`: the next version, of a version and tables of changed ads."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grace.configs.errors import InputError
from grace.index.allocation import plain_memory
from grace.index.builder.build import collected
from grace.index.builder.plan import BuildSpec, plan_build
from grace.index.builder.report import BuildReport
from grace.index.builder.rule_columns import columns_stated
from grace.index.changes.applied import applied, canonical
from grace.index.changes.change import Changes
from grace.index.progress import Notify, Progress
from grace.index.storage.reader import open_snapshot, read_snapshot
from grace.index.targeting.schema import load_schema


def build_onto(
    spec: BuildSpec, version: int, removed: Sequence[int], progress: Progress, notify: Notify
) -> BuildReport:
    """Put the ads of tables into a version, remove others, or do both.

    The new version has the bytes of a build of all ads. Those that stay come from the version.
    """
    with open_snapshot(spec.root, version) as opened:
        found = opened.manifest
        if load_schema(spec.data.targeting) != found.schema:
            raise InputError(
                f"{spec.data.targeting}: is not the targeting schema of version {version}, so all "
                "ads may need other rules; build all of them, without --onto"
            )
        spec = replace(spec, sid_space=found.sid_space, vocab_sizes=found.vocab_sizes)
        plan = plan_build(spec, progress, notify)
        if plan.source.files and not plan.source.rows:
            address = plan.source.files[0].address
            raise InputError(f"{address}: no rows; add the changed ads to it, or leave it out")
        puts, stated = collected(plan) if plan.source.files else (None, set[str]())
        gone = np.array(removed, np.int64)
        both = np.intersect1d(puts.columns.ad_ids, gone) if puts else gone[:0]
        if len(both):
            raise InputError(
                f"--remove: the tables have the ad with number {both[0]}; leave it out of "
                "--remove or of the tables"
            )
        with plan.steps.run("read the version", 1):
            base = read_snapshot(opened, spec.threads, plain_memory)
    absent = int((base.ads.ordinals(gone) < 0).sum())
    if absent:
        plan.notify(f"--remove: {absent} of these ads are not in version {base.facts.version}")
    with plan.steps.run("apply changes", 1):
        columns = columns_stated(plan.schema, stated)
        after = canonical(applied(base, Changes(puts, gone, columns), spec.threads))
    if not after.ads.num_ads:
        raise InputError("--remove: no ad is left; there is nothing to build")
    facts = plan.facts_now(after.facts.rule_columns, base.facts.rejects)
    watermark = facts.updates_watermark or base.facts.updates_watermark
    return plan.finish(replace(after, facts=replace(facts, updates_watermark=watermark)))
