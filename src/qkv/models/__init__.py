"""Models: found, read, checked; texts in, traces and vectors out."""

from qkv.models.families.lessons import random_model
from qkv.models.files.find import ModelError, places
from qkv.models.loading import load, load_for
from qkv.models.model import Model, ModelOutput

__all__ = ["Model", "ModelError", "ModelOutput", "load", "load_for", "places", "random_model"]
