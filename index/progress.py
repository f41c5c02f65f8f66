"""How a step of work reports what it has done."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the step's name, how much of it is done, and how much there is."""

Advance = Callable[[int], None]  # called with how much of a step is done

Notify = Callable[[str], None]  # called with a sentence about something unexpected
