"""The tables of operations for an NVIDIA GPU. They need Triton, so only `load.py` imports them."""

from grace.kernels.attention import prompt_attention_triton
from grace.kernels.attention.cross_attention_triton import cross_attention_triton
from grace.kernels.attention.self_attention_triton import rearrange_triton, self_attention_triton
from grace.kernels.decode.admit_children_cuda import admit_children_cuda
from grace.kernels.decode.ops import Ops
from grace.kernels.decode.select_beams_cuda import select_beams_cuda
from grace.kernels.eligibility.batch import eligible_nodes_on_gpu
from grace.kernels.encoder.arrange_tokens_triton import arrange_tokens_triton
from grace.kernels.encoder.encoder_attention_triton import encoder_attention_triton
from grace.kernels.encoder.encoder_ops import EncoderOps
from grace.kernels.encoder.token_product_triton import share_user_triton, token_product_triton
from grace.kernels.features.feature_ops import FeatureOps
from grace.kernels.features.feature_ops_cuda import join_inputs_cuda, sum_events_cuda
from grace.kernels.products import row_factors_triton
from grace.kernels.products.log_sums_triton import log_sums_triton

CUDA_DECODER = Ops(
    self_attention=self_attention_triton,
    cross_attention=cross_attention_triton,
    causal_attention=prompt_attention_triton.causal_attention_triton,
    prompt_attention=prompt_attention_triton.prompt_attention_triton,
    place_heads=prompt_attention_triton.place_heads_triton,
    row_factors=row_factors_triton.row_factors_triton,
    log_sums=log_sums_triton,
    activate=row_factors_triton.activate_triton,
    eligible_nodes=eligible_nodes_on_gpu,
    admit_children=admit_children_cuda,
    select_beams=select_beams_cuda,
    rearrange=rearrange_triton,
)
CUDA_ENCODER = EncoderOps(
    rms_norm=row_factors_triton.rms_norm_triton,
    attention=encoder_attention_triton,
    arrange_tokens=arrange_tokens_triton,
    token_product=token_product_triton,
    share_user=share_user_triton,
)
CUDA_FEATURES = FeatureOps(sum_events=sum_events_cuda, join_inputs=join_inputs_cuda)
CUDA_TABLES = CUDA_DECODER, CUDA_ENCODER, CUDA_FEATURES
