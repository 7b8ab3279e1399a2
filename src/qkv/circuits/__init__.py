"""Interpret models: measure what heads, neurons and MLPs do, and find circuits."""

from qkv.circuits import metrics
from qkv.circuits._caching import Cache, cache
from qkv.circuits._edge_effects import discover, edges, path
from qkv.circuits._flow import composition, copying_scores, rollout, value_weighted
from qkv.circuits._logits import attribute_logits, integrated_gradients, logit_lens
from qkv.circuits._patching import attribution_patch, patch
from qkv.circuits._plot_view import PlotView
from qkv.circuits._plotting import plot
from qkv.circuits._sae import SAE
from qkv.circuits._scanning import Example, HeadExample, HeadScan, Scan, scan, scan_heads
from qkv.circuits.means import diff, head_scores
from qkv.circuits.results import Edge, Graph, Result

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
    "metrics",
    "patch",
    "path",
    "plot",
    "rollout",
    "scan",
    "scan_heads",
    "value_weighted",
]
