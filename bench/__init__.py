"""Measurements of GRACE, and the documents' tables of their results.

The modules here measure on a CPU, `load` loads a running server, `gpu` makes the tables of
`grace bench`, and `rungs` rebuilds the steps of the paper's ladder. The product never imports this
package, except for `grace bench` and `grace demo`.
"""
