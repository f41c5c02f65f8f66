"""A request's user, from its bytes or from Python values to rows of the matchers."""
