"""A request's user: the rows that matchers test, and the values that rules name."""
