"""Read tables of Parquet, JSON lines or CSV, on disk or at a URL; and data folders.

table_file.py    a table file of any format: its columns, and its rows in batches
addresses.py     paths and URLs: which files they name, and how they are opened
roles.py         the roles of columns: which types may play each
rows.py          the cells of each role, batch by batch, and the faults of rows
data_folder.py   the folder that says where the tables are and what their columns are called
cells.py         texts of a CSV as numbers and lists; scalars as lists of one value
item_numbers.py  permanent numbers for ids that are not integers
sid_table.py     how a table of SIDs is written
ids.py           the ids of a data folder by level, in both directions, and the SIDs of items
"""
