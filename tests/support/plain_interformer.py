"""The InterFormer encoder in NumPy, from the formulas of docs/model.md: an oracle for tests.

One request, only the events that are there, float64 NumPy: no batch, no padding, no mask.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from grace.model.definition.inputs import age_buckets
from grace.model.definition.spec import ModelSpec
from support.plain_inputs import EncodedRequest, bag_row

Float64 = npt.NDArray[np.float64]
Weights = Mapping[str, Float64]


def plain_context(spec: ModelSpec, weights: Weights, request: EncodedRequest) -> Float64:
    """-> [context_tokens, d]"""
    encoder = spec.encoder.interformer
    assert encoder is not None
    x = non_sequence_tokens(spec, weights, request)
    events = event_states(spec, weights, request)
    w = below(weights, "encoder.")
    m = encoder.summary_tokens
    summaries = [w[f"summaries.{i}"] for i in range(len(events))]
    for j in range(encoder.blocks):
        block = below(w, f"blocks.{j}.")
        u = attend(block, "summarise.", block["queries"], x, encoder.heads)
        u = gate(block, "gate_out.", u)
        for i in range(len(events)):
            layer = below(block, f"sequences.{i}.")
            states = np.concatenate([summaries[i] + u, events[i]])
            states = attend(layer, "attention.", states, states, encoder.heads)
            states = personal_feed_forward(below(layer, "feed_forward."), states, u.mean(0))
            summaries[i], events[i] = states[:m], states[m:]
        gated = [gate(block, "gate_in.", summary) for summary in summaries]
        x = attend(block, "interact.", x, np.concatenate([x, *gated]), encoder.heads)
        x = feed_forward(below(block, "feed_forward."), x)
    pairs = zip(summaries, events, strict=True)
    memory = np.concatenate([x, *(part for pair in pairs for part in pair)])
    context = attend(w, "pool.", w["queries"], memory, encoder.heads)
    return norm(feed_forward(below(w, "feed_forward."), context), w["final_norm"])


def non_sequence_tokens(spec: ModelSpec, weights: Weights, request: EncodedRequest) -> Float64:
    vectors = []
    for name, numbers in zip(spec.dense, request.dense, strict=True):
        table = below(weights, f"features.tables.dense_{name}.")
        squashed = np.sign(numbers) * np.log1p(np.abs(numbers, dtype=np.float64))
        vectors.append(table["weight"] @ squashed + table["bias"])
    for name, chosen in zip(spec.categorical, request.categorical, strict=True):
        vectors.append(weights[f"features.tables.categorical_{name}.embed"][chosen])
    for (name, bag), ids in zip(spec.bags.items(), request.bags, strict=True):
        table_rows = weights[f"features.tables.bag_{name}.embed"]
        found = table_rows[np.array([bag_row(x, bag.hash_rows) for x in ids], np.int64)]
        vectors.append(found.mean(0) if len(found) else np.zeros(table_rows.shape[1]))
    tokens = weights["features.tokens"]
    if not vectors:
        return tokens
    projected = weights["features.project"] @ np.concatenate(vectors)
    added: Float64 = tokens + projected.reshape(tokens.shape)
    return added


def event_states(spec: ModelSpec, weights: Weights, request: EncodedRequest) -> list[Float64]:
    found = []
    for (name, declared), events in zip(spec.sequences.items(), request.sequences, strict=True):
        table = below(weights, f"features.tables.sequence_{name}.")
        states = np.zeros((len(events.sids), table["embed"].shape[2]))
        for event, sid in enumerate(events.sids):
            states[event] += sum(table["embed"][t][token] for t, token in enumerate(sid))
            states[event] += table["embed_age"][age_buckets(np.array(events.ages_ms))[event]]
            states[event] += table["embed_position"][len(events.sids) - 1 - event]
            for side, ids in zip(declared.side, events.side, strict=True):
                states[event] += table[f"embed_side_{side}"][ids[event]]
        found.append(states)
    return found


def norm(x: Float64, gain: Float64, eps: float = 1e-6) -> Float64:
    scaled: Float64 = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gain
    return scaled


def sigmoid(x: Float64) -> Float64:
    value: Float64 = 1 / (1 + np.exp(-x))
    return value


def attend(weights: Weights, at: str, x: Float64, memory: Float64, heads: int) -> Float64:
    w = below(weights, at)
    q = norm(x, w["norm"]) @ w["q"].T
    k, v = np.split(norm(memory, w["norm"]) @ w["kv"].T, 2, axis=1)
    outputs = []
    for head in np.split(np.arange(q.shape[1]), heads):
        scores = q[:, head] @ k[:, head].T / np.sqrt(len(head))
        weight = np.exp(scores - scores.max(1, keepdims=True))
        outputs.append(weight / weight.sum(1, keepdims=True) @ v[:, head])
    mixed: Float64 = np.concatenate(outputs, axis=1) @ w["out"].T
    return x + mixed


def gate(weights: Weights, at: str, x: Float64) -> Float64:
    w = below(weights, at)
    return x * sigmoid(norm(x, w["norm"]) @ w["weight"].T)


def feed_forward(w: Weights, x: Float64) -> Float64:
    return x + np.maximum(norm(x, w["norm"]) @ w["ffn_in"].T, 0) @ w["ffn_out"].T


def personal_feed_forward(w: Weights, x: Float64, user: Float64) -> Float64:
    hidden = np.maximum(norm(x, w["norm"]) @ w["ffn_in"].T, 0)
    openings = 2 * sigmoid(w["personal"] @ norm(user, w["personal_norm"]))
    return x + (hidden * openings) @ w["ffn_out"].T


def below(weights: Weights, prefix: str) -> dict[str, Float64]:
    return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
