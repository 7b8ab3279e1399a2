"""What a family may describe: one transformer, or two that belong together."""

from qkv.models.network.design import Design
from qkv.models.network.dual_design import DualDesign
from qkv.models.network.seq2seq_design import Seq2SeqDesign

AnyDesign = Design | Seq2SeqDesign | DualDesign
