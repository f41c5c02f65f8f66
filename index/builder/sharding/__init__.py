"""A build by ranges of first tokens: memory is bounded by the largest, the bytes stay the same.

    Parquet files
      │  collect_file, one task per file                                    runs.py
      ▼
    runs: about a million ads each, ordered by first token, on disk
      │  find_repeated, one task per range of ids, over all runs            repeated_ids.py
      ▼
    the ids of which no ad is built
      │  build_shard, one task per range of first tokens, over all runs     shard.py
      ▼
    shards: a whole snapshot each, of the SIDs that begin with its tokens
      │  merge_shards, level by level, a block at a time                    merge.py, join_*.py
      ▼
    the snapshot that `build` would have written

`sharded_build.py` goes through these steps. Tasks share nothing but files and may run anywhere that
sees the folder (`scratch.py`): whoever runs them, a loop here or Ray, is a parameter. Merging never
holds an array as a whole (`stored_arrays.py`), and numbers what several shards have in common by
first use (`copies.py`), as a build in one does.
"""

from grace.index.builder.sharding.sharded_build import RunTasks, Sharding, build_in_shards

__all__ = ["RunTasks", "Sharding", "build_in_shards"]
