"""Each command in a light installation, which has no torch, uvloop or matplotlib."""

import json
import os
import re
from pathlib import Path

import pytest

from grace.cli.main import COMMANDS
from grace.configs.extras import install_command
from support.command import TESTS, run_python

pytestmark = pytest.mark.subprocess

FILES = {
    "ads.csv": "ad_id,title,country\n7,Shoes,US|CA\n11,Hats,\n13,Socks,DE\n",
    "index.json": json.dumps({"7": ["<a_1>", "<b_2>"], "11": ["<a_1>", "<b_3>"]}),
    "sids.jsonl": "".join(f'{{"item_id": {ad}, "sid": [1, {ad}]}}\n' for ad in (7, 11, 13)),
    "shop/tables.yaml": 'ads: {files: [../ads.csv], list_separator: "|"}\nsids: ../sids.jsonl\n',
    "shop/targeting.yaml": "attributes:\n  country: {values: [CA, DE, US]}\n",
    "vectors.jsonl": "".join(f'{{"item_id": {ad}, "vector": [0.5, {ad}]}}\n' for ad in (7, 11)),
    "checkpoint/model.yaml": """
sid_space: shop-1
vocab_sizes: [16, 16]
inputs: {clicks: {kind: sequence, max_length: 5}}
encoder:
  t5: {layers: 1, d_model: 16, heads: 2, d_head: 8, d_ff: 24, history: clicks, num_tokens: 33,
       token_offsets: [1, 17], eos_token: 0}
decoder: {layers: 1, d_model: 16, heads: 2, d_head: 8, d_ff: 24}
""",
    "checkpoint/model.safetensors": "torch is needed before this is read",
    "serve.yaml": "snapshots: root\ncheckpoint: checkpoint\n"
    "generation: {max_batch: 1, profiles: {full: {beams: [1, 4], num_sids: 4}}}\n",
}

WORK = {
    "synth": (0, "synth --preset tiny --out tiny"),
    "init": (0, "init --ads ads.csv --out proposed"),
    "import-sids": (0, "import-sids index.json --sid-space shop-1 --out sids.parquet"),
    "build": (0, "build --data shop --sid-space shop-1 --vocab-sizes 16,16 --root root"),
    "inspect": (0, "inspect root"),
    "verify": (0, "verify root --deep"),
    "publish": (0, "publish root 1"),
    "admin": (1, "admin status --address 127.0.0.1:1"),
    "retrieve": (1, "retrieve --address 127.0.0.1:1 --user country=US"),
    "explain": (1, "explain --ad 7 --address 127.0.0.1:1 --user country=US"),
    "doctor": (0, "doctor"),
}
"""The exit code and the arguments of each command that works. No server has port 1."""

NEED = {
    "demo": "demo",
    "synth": "synth --preset demo --out demo",
    "init-model": f"init-model --config {Path(__file__)} --out model",
    "import-t5": "import-t5 none --sid-space shop-1 --vocab-sizes 8,8 --out model",
    "export-t5": "export-t5 none --out model",
    "import-causal": "import-causal none --sid-space shop-1 --sid-tokens A{} --out model",
    "sids": "sids --embeddings vectors.jsonl --codes 2 --out codebook",
    "train": "train --data tiny --out model",
    "evaluate": "evaluate --data tiny --checkpoint none",
    "serve": "serve --config serve.yaml",
    "bench": "bench eligibility --device cpu --tiny",
}
"""The arguments of each command that needs the extra `serve`."""

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


def test_a_light_command_works_and_another_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    """Run the commands one after another in one folder."""
    assert WORK.keys() | NEED.keys() == COMMANDS.keys()
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    lines = [*(line for _, line in WORK.values()), *NEED.values()]
    paths = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    done = run_python(LIGHT, *lines, cwd=tmp_path, env={"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    ends = dict(zip(lines, map(json.loads, done.stdout.splitlines()), strict=True))
    for code, line in WORK.values():
        assert (ends[line][0], "pip install" in ends[line][1]) == (code, False), ends[line]
    remedy = re.escape(install_command("serve"))
    for name, line in NEED.items():
        code, errors = ends[line]
        assert code == 1
        assert re.fullmatch(f"error: grace {name} needs (torch|uvloop): {remedy}\n", errors)
