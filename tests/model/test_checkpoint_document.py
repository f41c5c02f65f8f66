"""docs/checkpoints.md is enough to write a reader, and says what the code says."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import xxhash

from grace.model.checkpoints.checkpoint import save_checkpoint
from grace.model.checkpoints.init import random_model
from support.specs import T5


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "checkpoints.md").read_text(encoding="utf-8")


def test_a_reader_needs_no_more_than_the_page(tmp_path: Path) -> None:
    model = random_model(T5, seed=1)
    written = save_checkpoint(model, tmp_path / "m")
    content = (tmp_path / "m" / "model.safetensors").read_bytes()
    digests = [
        xxhash.xxh3_128((tmp_path / "m" / "model.yaml").read_bytes()).digest(),
        xxhash.xxh3_128(content).digest(),
    ]
    assert xxhash.xxh3_128(b"".join(digests)).hexdigest()[:16] == written
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    del header["__metadata__"]
    weights = model.state_dict()
    assert header.keys() == weights.keys()
    assert sum(b - a for a, b in (x["data_offsets"] for x in header.values())) == (
        len(content) - end
    )
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        numbers = np.frombuffer(content[end + first : end + last], "<f4").reshape(entry["shape"])
        assert entry["dtype"] == "F32"
        assert np.array_equal(numbers, weights[name].numpy()), name


def test_every_key_of_model_yaml_is_on_the_page(page: str) -> None:
    for key in T5.to_json():
        assert f"| `{key}` |" in page, key


def test_every_sentence_of_a_fault_is_one_that_the_code_can_say(
    page: str, repository: Path
) -> None:
    files = ("checkpoint.py", "weights_file.py")
    code = "".join((repository / "model" / name).read_text(encoding="utf-8") for name in files)
    # A sentence may be broken over lines and have values in its middle.
    code = re.sub(r'"\s*f?"', "", code)
    faults = page.partition("## Faults")[2].partition("\n## ")[0]
    cells = [line.split("|")[2] for line in faults.splitlines() if line.startswith("| ")][2:]
    phrases = [phrase.strip() for cell in cells for phrase in cell.split("·")]
    assert len(phrases) > 15
    unsaid = [
        phrase
        for phrase in phrases
        if not all(words.strip() in code for words in re.split(r"\bN\b|, ", phrase))
    ]
    assert unsaid == []
