"""Tests of every family of decoders and encoders against transformers, on small random models."""

from pathlib import Path

import pytest
import torch

from .families import FAMILIES, Family
from .models import compare_all

pytestmark = pytest.mark.unsampled  # CI compares every family

PAIRS = [
    pytest.param(family, kind, name, id=f"{kind.__name__}-{name}")
    for family in FAMILIES.values()
    for kind in family.classes()[: None if family.every else 1]
    for name in family.configs
]
OTHERS = [
    pytest.param(family, kind, id=kind.__name__)
    for family in FAMILIES.values()
    for kind in ([] if family.every else family.classes()[1:])
]


@pytest.mark.parametrize(("family", "kind", "name"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_model_agrees_with_transformers(
    tmp_path: Path, family: Family, kind: type, name: str, dtype: torch.dtype
) -> None:
    compare_all(tmp_path, kind, family.config_of(name), dtype)


@pytest.mark.parametrize(("family", "kind"), OTHERS)
def test_other_heads_agree_with_transformers(tmp_path: Path, family: Family, kind: type) -> None:
    pair = compare_all(tmp_path, kind, family.config_of(next(iter(family.configs))))
    with pytest.raises(ValueError, match=r"^generate: "):  # classifiers generate no words
        pair.ours.generate([[3, 4]])
