"""Products of the decoder: with rounded weights, by chosen algorithms, and their row factors."""
