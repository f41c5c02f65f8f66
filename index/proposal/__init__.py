"""What `grace init` proposes for a table: the roles of its columns, as two YAML files.

names.py       what the names of columns suggest
separators.py  how the cells of a CSV list values
facts.py       what all rows say about a column
roles.py       what each column becomes, and why
log.py         the same for a log of interactions
propose.py     all of it for one table
yaml_text.py   tables.yaml and targeting.yaml
"""
