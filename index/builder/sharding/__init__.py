"""A build by ranges of first tokens: the largest range bounds memory, and the bytes stay the same.

    Parquet files
      -> runs                    collect_file, a task per file               runs.py
      -> ids that are repeated   find_repeated, a task per range of ids      runs.py
      -> shards                  build_shard, a task per range of tokens     shard.py
      -> the snapshot            merge_shards, level by level, in blocks     merge.py

`sharded_build.py` goes through these steps. Tasks share only files (`scratch.py`), so they may run
on any machine that sees the folder; what runs them, a loop here or Ray, is a parameter.
"""

from grace.index.builder.sharding.sharded_build import RunTasks, Sharding, build_in_shards

__all__ = ["RunTasks", "Sharding", "build_in_shards"]
