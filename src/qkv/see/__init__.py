"""Attention to look at: in the terminal, as static figures, and as pages that explain."""

from qkv.see.headview import HeadView, head_view
from qkv.see.imageview import ImageView, image_view
from qkv.see.replayview import ReplayView, replay
from qkv.see.runs import RunsView
from qkv.see.shiftview import ShiftView, plot_shift
from qkv.see.view import View
from qkv.see.views import CompareView, ShowView, WalkView, compare, show, walk

__all__ = [
    "CompareView",
    "HeadView",
    "ImageView",
    "ReplayView",
    "RunsView",
    "ShiftView",
    "ShowView",
    "View",
    "WalkView",
    "compare",
    "head_view",
    "image_view",
    "plot_shift",
    "replay",
    "show",
    "walk",
]
