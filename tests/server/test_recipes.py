"""The recipes of docs/recipes.md: who gets which ads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.json as json_lines
import pyarrow.parquet as pq
import pytest
from google.protobuf.json_format import ParseDict

from grace.index.updates.state import UpdateState
from grace.index.updates.update import read_update
from grace.proto.retrieval_pb2 import RetrieveResponse, UpdateAdsRequest
from grace.server.engine.serving_pair import ServingPair
from grace.server.stages.explanation import explain_ad
from grace.server.stages.stages import STAGES
from support.documents import Block, blocks_of, sections_of
from support.raw_tables import build_data
from support.serving_files import ServingFiles, model_spec
from support.stage_cases import answer, load_cpu_pair, replies_of, request_batch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
RECIPES = sections_of(PAGE)
READ = {"csv": csv.read_csv, "jsonl": json_lines.read_json}


def loaded(recipe: list[Block], folder: Path, files: ServingFiles) -> ServingPair:
    """Build the recipe's table; all of its ads have one SID."""
    (table,) = (block for block in recipe if block.language in READ)
    ads = folder / f"ads.{table.language}"
    (schema,) = (block.text for block in recipe if block.language == "yaml")
    tables = next(block.text for block in blocks_of(PAGE) if block.language == "yaml")
    ads.write_text(table.text)
    (folder / "targeting.yaml").write_text(schema)
    (folder / "tables.yaml").write_text(tables.replace("ads.csv", ads.name))
    ids = READ[table.language](ads)["ad_id"]
    sids = {"item_id": ids, "sid": pa.array([[1, 2, 3, 4]] * len(ids), pa.list_(pa.uint16()))}
    pq.write_table(pa.table(sids), folder / "sids.parquet")
    model = model_spec()
    sizes = ",".join(map(str, model.vocab_sizes))
    build_data(folder, "--sid-space", model.sid_space, "--vocab-sizes", sizes)
    return load_cpu_pair(folder / "snapshots", files.checkpoint)


def calls_of(recipe: list[Block]) -> Iterator[dict[str, Any]]:
    """Yield requests, each followed by its reply, and updates between them."""
    return (json.loads(block.text) for block in recipe if block.language == "json")


def update(pair: ServingPair, message: dict[str, Any]) -> None:
    state = UpdateState()
    encoded = ParseDict(message, UpdateAdsRequest()).SerializeToString()
    state.apply(read_update(encoded))
    pair.live.rebuild(state)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_s_requests_get_the_replies_that_the_page_shows(
    name: str, serving_files: ServingFiles, tmp_path: Path
) -> None:
    pair = loaded(RECIPES[name], tmp_path, serving_files)
    calls = calls_of(RECIPES[name])
    shown = found = 0
    for call in calls:
        if "sequence" in call:
            update(pair, call)
            continue
        (reply,) = replies_of(answer(request_batch(pair, [call], bucket=1))).values()
        expected = ParseDict(next(calls), RetrieveResponse())
        assert list(reply.ad_ids) == list(expected.ad_ids), call
        assert not reply.ignored_names
        shown, found = shown + 1, found + len(reply.ad_ids)
    assert shown
    assert found


def test_explain_names_vain_values(serving_files: ServingFiles, tmp_path: Path) -> None:
    pair = loaded(RECIPES["Brand safety"], tmp_path, serving_files)
    call = {"filters": {"category": {"none_of": ["gambling", "gamblign"]}}}
    batch = request_batch(pair, [call], bucket=1)
    explained = explain_ad(3, batch, STAGES, lambda levels: {}, lambda: None)
    assert explained.text.endswith("; no ad has these filter values: category=gamblign")
    assert [(rule.name, rule.allows) for rule in explained.rules] == [("category", "has no value")]
