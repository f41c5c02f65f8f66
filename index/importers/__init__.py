"""Import Semantic IDs that other projects publish, as a table of `item_id` and `sid`.

`index_json` and `npy` each yield the rows of a file, and `sids` checks and writes them. A faulty
item ends the import. A build joins the table that tables.yaml names as `sids` to the ads.
"""
