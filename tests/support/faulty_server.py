"""The real server with faults: `grace serve` with stages that can be stopped and broken.

    python faulty_server.py --config FILE --faults FOLDER

A test switches faults on and off by files in FOLDER while the server runs: see support.faults.
"""

import argparse
import signal
import sys
from pathlib import Path

from grace.configs.serving import load_serving_config
from grace.server.life_cycle import serve
from grace.server.stages.stages import STAGES
from support.faults import Faults, disturbed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--faults", type=Path, required=True)
    given = parser.parse_args()
    faults = Faults(given.faults)
    signal.signal(signal.SIGUSR1, faults.stop_loop)
    stages = disturbed(STAGES, faults.disturb)
    return serve(load_serving_config(given.config), stages)


if __name__ == "__main__":
    sys.exit(main())
