"""Matrix products of the decoder: with rounded weights, and by chosen algorithms; row factors."""
