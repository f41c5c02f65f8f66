"""Changes of ads, as a function from a snapshot to a snapshot.

    change.py    put ads and removed ids, read as a build reads them
    applied.py   the function, and the form that is written to the disk
    places.py    where the ads and SIDs of a change are in the trie, or belong
    ruling.py    the rules of put ads among those that the snapshot has
    rows.py      edits of arrays: rows that go, and rows that join

Rows that stay are copied in bulk, on all cores: native/src/edits.cpp.
"""
