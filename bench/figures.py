"""matplotlib's types, for the programs that draw. Without matplotlib, the extra `plots`, they end
with one line: they import this before anything is measured or read.
"""

import sys

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    sys.exit(f"error: the pictures need {error.name}: pip install 'grace-serving[plots]'")

__all__ = ["Axes", "Figure"]
