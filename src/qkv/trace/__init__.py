"""Traces: all activations of a run, by name."""

from qkv.trace.recorder import Recorder
from qkv.trace.trace import Seq2SeqTrace, Trace

__all__ = ["Recorder", "Seq2SeqTrace", "Trace"]
