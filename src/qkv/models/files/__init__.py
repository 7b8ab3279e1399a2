"""Find, check, read and write the folders of models."""

from qkv.models.files._generation_config import Penalties, sampling_of
from qkv.models.files._gguf import read_gguf
from qkv.models.files._gguf_config import gguf_config, gguf_generation, gguf_tensors
from qkv.models.files._gguf_tokenizer import gguf_sentence, gguf_tokenizer
from qkv.models.files._image_preprocessor import Pixels
from qkv.models.files._modules_json import Routing, read_routing
from qkv.models.files._notices import read_notices
from qkv.models.files._saving import save_model, storage_type
from qkv.models.files._tensors import FLOATS, Stored, Tensors, header
from qkv.models.files._tokenizer_config import configure
