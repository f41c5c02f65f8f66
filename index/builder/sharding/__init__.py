"""The tasks of a build in shards, and the merge of what they write (`build.py` runs them)."""
