"""Small models with random weights, to compare ways of running them."""

import torch
from torch import Tensor

from grace.model.definition.decoder import Decoder
from grace.model.definition.inputs import UserContext
from grace.model.definition.t5_spec import DecoderSpec

SMALL_DECODER = DecoderSpec(layers=2, d_model=24, heads=3, d_head=8, d_ff=40)


def random_decoder(
    spec: DecoderSpec, vocab_sizes: tuple[int, ...], d_context: int, seed: int
) -> Decoder:
    """Return a decoder whose logits have a standard deviation near 2."""
    generator = torch.Generator().manual_seed(seed)
    decoder = Decoder(spec, vocab_sizes, d_context)
    with torch.no_grad():
        for name, weight in decoder.named_parameters():
            scale = 1.0 if name in ("start", "embed", "bias") else 0.3
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.2 * noise if name.endswith("norm") else scale * noise)
    return decoder


def random_context(batch: int, tokens: int, d: int, seed: int) -> UserContext:
    """Each request has at least one key; about a quarter are masked."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn((batch, tokens, d), generator=generator)
    mask = torch.rand((batch, tokens), generator=generator) < 0.75
    mask[:, 0] = True
    return UserContext(states, mask)


def prefix_scores(decoder: Decoder, context: UserContext, request: int, sids: Tensor) -> Tensor:
    """Return the log-probability of each prefix of each SID for one request, without caches.

    int64 [N, L] -> [N, L]
    """
    one = UserContext(
        context.states[request].expand(len(sids), -1, -1),
        context.mask[request].expand(len(sids), -1),
    )
    with torch.inference_mode():
        steps = decoder.sequence_logits(one, sids)
        of_tokens = [
            logits.float().log_softmax(dim=-1).gather(1, sids[:, step : step + 1])
            for step, logits in enumerate(steps)
        ]
        return torch.cat(of_tokens, dim=1).cumsum(dim=1)


def sequence_scores(decoder: Decoder, context: UserContext, request: int, sids: Tensor) -> Tensor:
    """Return the log-probability of each SID for one request, without caches: [N, L] -> [N]."""
    return prefix_scores(decoder, context, request, sids)[:, -1]
