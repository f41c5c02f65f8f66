"""The paper's performance tables, measured: `grace bench attention | gtm | ladder | serve`.

Every module named like a table has `measure_<table>(options)`, which yields its rows. A row is only
made after what it times has agreed with its definition in the same run; `clock` says how times are
taken, `document` makes docs/performance.md of the result files.
"""
