"""From an ads table in Parquet to a snapshot: streamed, on all cores, the same bytes every time.

`build` runs the whole of it: collect the ads, arrange them by SID, join the matchers, write.
"""

from index.builder.build import BuildReport, BuildSpec, build

__all__ = ["BuildReport", "BuildSpec", "build"]
