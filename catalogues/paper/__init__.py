"""A synthetic catalogue with the statistics of the paper's: 30 million SIDs, 50 million ads.

    `grace synth --preset paper --sids 300000 --out catalogue`      # as files, or as arrays:
    catalogue = make_paper_catalogue(PaperSpec(300_000, seed=1), threads=2)
    snapshot = derive(paper_snapshot(catalogue, threads=2), EXACT, threads=2)

Each draw of a prefix, campaign or ad is a function of the seed and its own number (draws.py), so
both ways give the same snapshot. `PaperKnobs` states every number and its reason. Users, and the
generator that stands in for a model, belong to the catalogue.
"""
