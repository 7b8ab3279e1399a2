"""Views of attention: in a terminal, as static figures, and as interactive pages."""

from qkv.see.page.play import Stories, Story, stories
from qkv.see.views.compare import CompareView, RunsView, compare
from qkv.see.views.guess import GuessView, guess
from qkv.see.views.image_view import ImageView, image_view
from qkv.see.views.play import PlayView, play
from qkv.see.views.replay import ReplayView, replay
from qkv.see.views.shift import ShiftView, plot_shift
from qkv.see.views.show import HeadView, ShowView, head_view, show
from qkv.see.views.view import View
from qkv.see.views.walk import WalkView, walk

__all__ = [
    "CompareView",
    "GuessView",
    "HeadView",
    "ImageView",
    "PlayView",
    "ReplayView",
    "RunsView",
    "ShiftView",
    "ShowView",
    "Stories",
    "Story",
    "View",
    "WalkView",
    "compare",
    "guess",
    "head_view",
    "image_view",
    "play",
    "plot_shift",
    "replay",
    "show",
    "stories",
    "walk",
]
