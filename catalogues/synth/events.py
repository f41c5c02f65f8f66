"""What requests and the interaction log share: an event's actions, and the time that is now."""

ACTIONS = 8  # cardinality of the events' action; the ids in use are:
ACTION_IDS = (1, 2, 3, 4)  # view, click, save, buy
ACTION_ODDS = (0.45, 0.40, 0.10, 0.05)

NOW_MS = 1_788_264_000_000  # 2026-09-01 12:00 UTC: no file depends on the clock
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
