"""Traces: all activations of a run, by name."""

from qkv.trace.recorder import Recorder
from qkv.trace.seq2seq import Seq2SeqTrace
from qkv.trace.trace import Trace

__all__ = ["Recorder", "Seq2SeqTrace", "Trace"]
