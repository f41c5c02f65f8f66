"""The paper's performance tables, measured: `grace bench attention | gtm | ladder | serve | ...`.

Each table has a module with `measure(workload)`, which yields its rows; `grace.bench.options` names
it. A row is only made after its timed work agreed with its definition in the same run. `subjects`
holds what is measured, `instruments` how, and `pages` makes tables and pictures of the results.
"""
