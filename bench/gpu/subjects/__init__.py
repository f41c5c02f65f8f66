"""What the tables measure: the paper's catalogue and model, a search, a batch's whole path."""
