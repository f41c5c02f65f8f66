"""Small model specifications of both kinds, with odd sizes."""

from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DecoderSpec,
    DenseInput,
    EncoderSpec,
    InterFormerSpec,
    ModelSpec,
    SequenceInput,
    T5EncoderSpec,
)

__all__ = ["INTERFORMER", "T5"]

T5 = ModelSpec(
    sid_space="plain-1",
    vocab_sizes=(7, 7, 7),
    inputs={"clicks": SequenceInput(max_length=5, side={})},
    encoder=EncoderSpec(
        t5=T5EncoderSpec(
            layers=2,
            d_model=21,
            heads=3,
            d_head=5,
            d_ff=33,
            history="clicks",
            num_tokens=25,
            token_offsets=(1, 8, 15),
            prefix_tokens=(23,),
            eos_token=24,
        )
    ),
    decoder=DecoderSpec(
        layers=2, d_model=21, heads=3, d_head=5, d_ff=33, extra_head_rows=(18, 18, 18)
    ),
)

INTERFORMER = ModelSpec(
    sid_space="plain-1",
    vocab_sizes=(11, 3, 7),
    inputs={
        "hour": DenseInput(),
        "rates": DenseInput(size=3, default=(0.5, -1.0, 2.0)),
        "device": CategoricalInput(cardinality=5, default=2),
        "pages": BagInput(hash_rows=63, default=(17, -4)),
        "clicks": SequenceInput(max_length=9, side={"action": 3}),
        "views": SequenceInput(max_length=4, side={}),
    },
    encoder=EncoderSpec(
        interformer=InterFormerSpec(
            blocks=2,
            d_model=12,
            heads=3,
            d_ff=20,
            context_tokens=7,
            non_sequence_tokens=5,
            summary_tokens=2,
            bag_dim=6,
        )
    ),
    decoder=DecoderSpec(
        layers=1, d_model=16, heads=2, d_head=8, d_ff=24, ffn="gated_gelu", scale_scores=True
    ),
)
