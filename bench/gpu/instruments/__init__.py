"""How the tables measure: times, floors, and checks of what was timed."""
