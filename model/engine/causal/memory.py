"""The memory that a causal model needs, computed before a load takes any."""

from grace.configs.generation import GenerationConfig
from grace.model.definition.causal_spec import CausalModelSpec
from grace.model.engine.causal.generation import token_buckets
from grace.model.engine.precision import PRECISIONS, Precision

_FLOAT32 = 4  # bytes
_OF_A_CANDIDATE = 8  # its token and its node
_OF_A_GRAPH = 4 << 20
_ALLOCATED = 1.05  # bytes that the allocator takes for one


def memory_of_weights(spec: CausalModelSpec) -> int:
    """Return the bytes of all weights in float32, in which a CPU computes."""
    causal = spec.causal
    heads = 1 if causal.tied_head else 2
    each = causal.layers * causal.layer_weights + heads * causal.num_tokens * causal.d_model
    return each * _FLOAT32


def memory_on_cpu(spec: CausalModelSpec, config: GenerationConfig) -> int:
    """Return the bytes of the weights, of keys and values, which prompts have twice while they are
    read, and of the scores that a prompt or a step has at a time."""
    causal, longest = spec.causal, spec.prompt.max_tokens
    rows, kept = _rows_of_a_step(config), _pairs_kept(spec, config)
    columns = causal.num_tokens if spec.normalizer == "all" else max(spec.vocab_sizes)
    attended = causal.heads * longest * max(longest, rows // config.max_batch)
    numbers = kept + max(kept, 4 * attended, 4 * rows * columns)
    return int(_ALLOCATED * (memory_of_weights(spec) + numbers * _FLOAT32))


def memory_on_gpu(
    spec: CausalModelSpec, config: GenerationConfig, precision: Precision, stored: int
) -> int:
    """Return the bytes at the peak of a load, which is when the graphs are recorded.

    Memory then holds the weights as they are `stored`, and the engine's copies of them.
    """
    causal, size = spec.causal, PRECISIONS[precision].itemsize
    rounded = 1 if precision == "fp8" else size
    vocabulary = causal.num_tokens * causal.d_model
    copies = causal.layers * causal.layer_weights * rounded
    copies += vocabulary * (size + rounded) + 2 * sum(spec.vocab_sizes) * causal.d_model * size
    heads = 4 if precision == "fp8" else 2  # to round one takes two more copies
    folded = _FLOAT32 * max(6 * causal.d_ff * causal.d_model, heads * vocabulary)
    rows, prompts = _rows_of_a_step(config), config.max_batch * spec.prompt.max_tokens
    inner = causal.qkv_heads * causal.d_head + 2 * causal.heads * causal.d_head
    states = size * (2 * causal.d_model + max(inner, 3 * causal.d_ff))
    logits = rows * (max(spec.vocab_sizes) * (_FLOAT32 + _OF_A_CANDIDATE) + 4096 * _FLOAT32)
    graphs = len(token_buckets(config, spec.prompt.max_tokens))
    graphs += len(config.batch_buckets) * len(config.profiles)
    served = (prompts + rows) * states + logits + graphs * _OF_A_GRAPH
    served += _pairs_kept(spec, config) * size
    return int(_ALLOCATED * (stored + copies + max(folded, served)))


def _pairs_kept(spec: CausalModelSpec, config: GenerationConfig) -> int:
    """Return the number of keys and values of a batch's prompts and beams."""
    beams = max(sum(profile.beams) for profile in config.profiles.values())
    of_a_token = spec.causal.layers * 2 * spec.causal.kv_heads * spec.causal.d_head
    return config.max_batch * (spec.prompt.max_tokens + beams) * of_a_token


def _rows_of_a_step(config: GenerationConfig) -> int:
    widest = max(max(*profile.beams, profile.num_sids) for profile in config.profiles.values())
    return config.max_batch * widest
