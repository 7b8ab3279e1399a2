"""Find, read, check and run models."""

from qkv.models._cross_encoder import CrossEncoderModel
from qkv.models._loading import load, load_for
from qkv.models._pool import Pool
from qkv.models.families._registry import register
from qkv.models.files.config import Config
from qkv.models.files.find import places
from qkv.models.files.names import Family, Fused
from qkv.models.files.read import ModelError
from qkv.models.model import Model
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head
from qkv.models.run.edited_run import At
from qkv.models.tasks._head_weights import Factored, HeadWeights
from qkv.models.tasks.call import ModelOutput
from qkv.models.untrained import random_model
from qkv.models.vision import DualEncoder, DualOutput

__all__ = [
    "At",
    "Attention",
    "Config",
    "CrossEncoderModel",
    "Design",
    "DualEncoder",
    "DualOutput",
    "Factored",
    "Family",
    "Fused",
    "Head",
    "HeadWeights",
    "Model",
    "ModelError",
    "ModelOutput",
    "Pool",
    "load",
    "load_for",
    "places",
    "random_model",
    "register",
]
