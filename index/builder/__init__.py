"""Build a snapshot from an ads table: streamed, on all cores, with reproducible bytes.

`build` does all of it: collect the ads, arrange them by SID, write.
`build_in_shards` does so for one range of first tokens at a time, here or on several machines.
"""

from grace.index.builder.build import BuildSpec, build, spec_of
from grace.index.builder.report import BuildReport
from grace.index.builder.sharding import RunTasks, Sharding, build_in_shards

__all__ = [
    "BuildReport",
    "BuildSpec",
    "RunTasks",
    "Sharding",
    "build",
    "build_in_shards",
    "spec_of",
]
