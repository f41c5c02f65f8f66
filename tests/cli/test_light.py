"""Each command in a light installation, which has no torch, uvloop or matplotlib."""

import json
import os
import sys
from pathlib import Path

import pytest

from grace.cli.main import COMMANDS
from support.command import TESTS, run_python
from support.light_commands import LINES, NEED, WORK, faults_of, write_inputs

pytestmark = pytest.mark.subprocess

LIGHT = """
import json, sys
sys.modules.update(torch=None, uvloop=None, matplotlib=None)
import grace.client
from support.in_process import invoke_grace
for line in sys.argv[1:]:
    done = invoke_grace(*line.split())
    if not isinstance(done.exception, SystemExit | None):
        raise done.exception
    print(json.dumps([done.exit_code, done.stderr]))
"""


def test_a_light_command_works_and_another_says_in_one_line_what_to_install(
    tmp_path: Path,
) -> None:
    assert WORK.keys() | NEED.keys() == COMMANDS.keys()
    write_inputs(tmp_path)
    paths = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    done = run_python(LIGHT, *LINES, cwd=tmp_path, env={"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    ends = dict(zip(LINES, map(json.loads, done.stdout.splitlines()), strict=True))
    assert faults_of(ends, sys.executable) == []
