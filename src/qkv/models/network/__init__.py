"""The networks of models, independent of files."""

from qkv.models.network._decoder import (
    EncodedTexts as EncodedTexts,
    EncoderDecoder as EncoderDecoder,
)
from qkv.models.network._embedding import Embedding as Embedding
from qkv.models.network._relative_bias import Buckets as Buckets
from qkv.models.network._rope_scaling import (
    Dynamic as Dynamic,
    Linear as Linear,
    Llama3 as Llama3,
    LongRope as LongRope,
    Proportional as Proportional,
    Yarn as Yarn,
)
