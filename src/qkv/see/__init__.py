"""Views of attention: in a terminal, as pictures, and as interactive pages."""

from qkv.see.page.play import Stories, Story, stories
from qkv.see.views._compare import CompareView, RunsView, compare
from qkv.see.views._guess import GuessView, guess
from qkv.see.views._image_view import ImageView, image_view
from qkv.see.views._replay import ReplayView, replay
from qkv.see.views._shift import ShiftView, plot_shift
from qkv.see.views._show import HeadView, ShowView, head_view, show
from qkv.see.views._walk import WalkView, walk
from qkv.see.views._why import Why, why
from qkv.see.views.play import PlayView, play
from qkv.see.views.view import View

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
    "Why",
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
    "why",
]
