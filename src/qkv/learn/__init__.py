"""Training of models: objectives, AdamW, and the training loop."""

from qkv.learn._corpus import Corpus, Files, Sequences, Source, paragraphs, running
from qkv.learn._loop import Diverged, Trained, train
from qkv.learn._network import Network
from qkv.learn._objectives import Causal, Masked, Objective, Part, Words, words_loss
from qkv.learn._on_text import TextRun, train_on_text
from qkv.learn._tokenizer import train_tokenizer
from qkv.learn.optimizer import AdamW, Schedule
from qkv.learn.run_folder import (
    Checkpoint,
    last_checkpoint,
    plot_curves,
    read_metrics,
    write_curves,
)
from qkv.models.untrained import fresh_model
from qkv.ops import adamw, cross_entropy
from qkv.signals import Interrupted

__all__ = [
    "AdamW",
    "Causal",
    "Checkpoint",
    "Corpus",
    "Diverged",
    "Files",
    "Interrupted",
    "Masked",
    "Network",
    "Objective",
    "Part",
    "Schedule",
    "Sequences",
    "Source",
    "TextRun",
    "Trained",
    "Words",
    "adamw",
    "cross_entropy",
    "fresh_model",
    "last_checkpoint",
    "paragraphs",
    "plot_curves",
    "read_metrics",
    "running",
    "train",
    "train_on_text",
    "train_tokenizer",
    "words_loss",
    "write_curves",
]
