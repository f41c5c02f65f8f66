"""matplotlib's types, for the programs that draw. Without matplotlib, the extra `plots`, they end
with one line: they import this before anything is measured or read.
"""

import sys

from grace.configs.extras import install_command

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter
except ModuleNotFoundError as error:
    sys.exit(f"error: the pictures need {error.name}: {install_command('plots')}")

__all__ = ["Axes", "EngFormatter", "Figure"]
