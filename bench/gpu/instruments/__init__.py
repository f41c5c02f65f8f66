"""How the tables measure: times, hardware counters, floors, and checks of what was timed."""
