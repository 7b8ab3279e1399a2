"""What stands in the place of each MLP where a block has several, before they have parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qkv.arrays import Array, Shape
from qkv.layers import Experts, GatedExperts
from qkv.layers.experts import expert_shapes
from qkv.layers.gated_experts import gated_expert_shapes


@dataclass(frozen=True)
class Mixture:
    """What stands in the place of each MLP: a router and the MLPs it chooses among.

    Attributes:
        count: E, how many experts there are.
        top_k: how many of them a token goes through.
        alpha: as for `Experts`.
        limit: the same.
    """

    count: int
    top_k: int
    alpha: float
    limit: float

    def shapes(self, number: int, dim: int, hidden: int) -> Iterable[tuple[str, Shape]] | None:
        """The parameters of a layer and their shapes, or None where it has one MLP."""
        return expert_shapes(dim, hidden, self.count).items()

    def build(self, parameters: Mapping[str, Array], activation: str) -> Experts:
        """The experts with these parameters."""
        return Experts(parameters, top_k=self.top_k, alpha=self.alpha, limit=self.limit)


@dataclass(frozen=True)
class GatedMixture:
    """A router and the gated MLPs that it chooses among.

    Attributes:
        count: E, how many experts there are.
        top_k: how many of them a token goes through.
        hidden: F, the size between the two layers of an expert.
        normalized: whether what the chosen ones count adds up to 1.
        without: the layers that have one MLP after all.
    """

    count: int
    top_k: int
    hidden: int
    normalized: bool = True
    without: frozenset[int] = frozenset()

    def shapes(self, number: int, dim: int, hidden: int) -> Iterable[tuple[str, Shape]] | None:
        """The parameters of a layer and their shapes, or None where it has one MLP."""
        if number in self.without:
            return None
        return gated_expert_shapes(dim, self.hidden, self.count)

    def build(self, parameters: Mapping[str, Array], activation: str) -> GatedExperts:
        """The experts with these parameters."""
        return GatedExperts(
            parameters, top_k=self.top_k, activation=activation, normalized=self.normalized
        )
