"""Propose the roles of a table's columns, as two YAML files (`grace init`).

lexicon.yaml   the words that names are searched for
names.py       the roles that the names of columns suggest
facts.py       facts about a column, from all rows
roles.py       the role of each column, with a reason
log.py         the same for a log of interactions and a table of embeddings
propose.py     the proposal for one table
yaml_text.py   tables.yaml and targeting.yaml
"""
