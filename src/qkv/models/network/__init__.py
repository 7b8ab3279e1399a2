"""The networks of models, independent of files."""

from qkv.models.network._decoder import EncodedTexts, EncoderDecoder
from qkv.models.network._embedding import Embedding, PatchEmbedding
from qkv.models.network._relative_bias import Buckets, Disentangled
from qkv.models.network._rope_scaling import Dynamic, Linear, Llama3, LongRope, Proportional, Yarn
