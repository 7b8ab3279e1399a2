"""Interpret models: measure what heads, neurons and MLPs do, and find circuits."""

from qkv.circuits.caching import Cache, cache
from qkv.circuits.edge_effects import discover, edges, path
from qkv.circuits.flow import composition, copying_scores, rollout, value_weighted
from qkv.circuits.logits import attribute_logits, integrated_gradients, logit_lens
from qkv.circuits.means import diff, head_scores
from qkv.circuits.patching import attribution_patch, patch
from qkv.circuits.plot_view import PlotView
from qkv.circuits.plotting import plot
from qkv.circuits.results import Edge, Graph, Result
from qkv.circuits.sae import SAE
from qkv.circuits.scanning import Example, HeadExample, HeadScan, Scan, scan, scan_heads

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
