"""A graph of edges: how it is asked, and what it becomes."""

import pytest

from qkv.circuits import Edge, Graph

EDGES = [
    Edge("attn.0.1", "logits", -2.0),
    Edge("embed", "attn.0.1.q", 1.5),
    Edge("embed", "mlp.0", 0.0),
]
GRAPH = Graph(["embed", "attn.0.1", "mlp.0", "logits"], EDGES, "eap", 3.0, 1.0, 0.75, None)


def test_a_score_by_its_names():
    assert [GRAPH.score(edge.sender, edge.receiver) for edge in EDGES] == [-2.0, 1.5, 0.0]
    for pair in (("embed", "attn.0.1.k"), ("embed", "attn.0.1"), (3, None)):
        with pytest.raises(
            KeyError, match=r"there is no edge .*; the nearest receivers are .*attn\.0\.1\.q"
        ):
            GRAPH.score(*pair)
    with pytest.raises(KeyError, match=r"no edge 'mlp\.0' to 'logits'; logits reads attn\.0\.1"):
        GRAPH.score("mlp.0", "logits")
    with pytest.raises(KeyError, match=r"no edge 'embed' to 'logits'.$"):
        Graph([], [], "exact", 0.0, 0.0).score("embed", "logits")


def test_the_first_so_many():
    assert GRAPH.top(2) == EDGES[:2]
    assert GRAPH.top(9) == EDGES
    assert GRAPH.top(0) == []
    with pytest.raises(TypeError, match="top: count"):
        GRAPH.top(1.5)
    with pytest.raises(ValueError, match="top: count"):
        GRAPH.top(-1)


def test_a_table_for_pandas():
    table = GRAPH.to_pandas()
    assert list(table.columns) == ["sender", "receiver", "score"]
    assert list(table.itertuples(index=False, name=None)) == [tuple(edge) for edge in EDGES]
    empty = Graph([], [], "exact", 0.0, 0.0).to_pandas()
    assert list(empty.columns) == ["sender", "receiver", "score"]


def test_what_it_says_of_itself():
    assert repr(GRAPH) == "<Graph: 4 nodes, 3 edges, eap, correlation 0.750>"
