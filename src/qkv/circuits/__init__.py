"""What researchers ask of a model: which part does what."""

from qkv.circuits.caching import Cache, cache
from qkv.circuits.composing import composition
from qkv.circuits.connecting import discover, edges, path
from qkv.circuits.copying import copying_scores
from qkv.circuits.flow import rollout, value_weighted
from qkv.circuits.graph import Edge, Graph
from qkv.circuits.heads import head_scores
from qkv.circuits.integrated import integrated_gradients
from qkv.circuits.lens import logit_lens
from qkv.circuits.neurons import Example, Scan, scan
from qkv.circuits.parting import diff
from qkv.circuits.patching import attribution_patch
from qkv.circuits.plot_view import PlotView
from qkv.circuits.plotting import plot
from qkv.circuits.results import Result
from qkv.circuits.sae import SAE
from qkv.circuits.scanning import HeadExample, HeadScan, scan_heads
from qkv.circuits.shares import attribute_logits
from qkv.circuits.sweeping import patch

__all__ = [
    "SAE",
    "Cache",
    "Edge",
    "Example",
    "Graph",
    "HeadExample",
    "HeadScan",
    "PlotView",
    "Result",
    "Scan",
    "attribute_logits",
    "attribution_patch",
    "cache",
    "composition",
    "copying_scores",
    "diff",
    "discover",
    "edges",
    "head_scores",
    "integrated_gradients",
    "logit_lens",
    "patch",
    "path",
    "plot",
    "rollout",
    "scan",
    "scan_heads",
    "value_weighted",
]
