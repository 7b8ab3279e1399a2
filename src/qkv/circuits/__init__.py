"""What researchers ask of a model: which part does what."""

from qkv.circuits.composing import composition
from qkv.circuits.copying import copying_scores
from qkv.circuits.flow import rollout, value_weighted
from qkv.circuits.heads import head_scores
from qkv.circuits.integrated import integrated_gradients
from qkv.circuits.lens import logit_lens
from qkv.circuits.patching import attribution_patch, patch
from qkv.circuits.plotting import PlotView, plot
from qkv.circuits.results import Result
from qkv.circuits.scanning import HeadExample, HeadScan, scan_heads
from qkv.circuits.shares import attribute_logits

__all__ = [
    "HeadExample",
    "HeadScan",
    "PlotView",
    "Result",
    "attribute_logits",
    "attribution_patch",
    "composition",
    "copying_scores",
    "head_scores",
    "integrated_gradients",
    "logit_lens",
    "patch",
    "plot",
    "rollout",
    "scan_heads",
    "value_weighted",
]
