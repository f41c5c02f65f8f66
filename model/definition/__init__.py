"""The model as formulas: inputs, features, encoders, decoder and beam search in plain torch."""
