"""Find, check, read and write the folders of models."""

from qkv.models.files._generation_config import Penalties as Penalties
from qkv.models.files._image_preprocessor import Pixels as Pixels
from qkv.models.files._modules_json import Routing as Routing, read_routing as read_routing
from qkv.models.files._notices import read_notices as read_notices
from qkv.models.files._saving import save_model as save_model, storage_type as storage_type
from qkv.models.files._tensors import (
    FLOATS as FLOATS,
    Stored as Stored,
    Tensors as Tensors,
    exact_rows as exact_rows,
    header as header,
)
from qkv.models.files._tokenizer_config import configure as configure
