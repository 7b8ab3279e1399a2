"""Traces: every intermediate of a run by its name, for one text or a pair of texts."""

from qkv.trace.recorder import Recorder
from qkv.trace.seq2seq import Seq2SeqTrace
from qkv.trace.trace import Trace

__all__ = ["Recorder", "Seq2SeqTrace", "Trace"]
