"""Training of models: objectives, AdamW, and the training loop."""

from qkv.learn.corpus import Corpus, Files, Sequences, Source, paragraphs, running
from qkv.learn.loop import Diverged, Trained, train
from qkv.learn.network import Network
from qkv.learn.objectives import Causal, Masked, Objective, Part, Words, words_loss
from qkv.learn.on_text import TextRun, train_on_text
from qkv.learn.optimizer import AdamW, Schedule
from qkv.learn.run_folder import (
    Checkpoint,
    last_checkpoint,
    plot_curves,
    read_metrics,
    write_curves,
)
from qkv.learn.tokenizer import train_tokenizer
from qkv.models.untrained import fresh_model
from qkv.ops.adamw import adamw
from qkv.ops.loss import cross_entropy
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
