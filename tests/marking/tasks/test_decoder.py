"""Tests of the task `decoder`: right and wrong decoders in the style of a learner."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

import qkv
from qkv_marking import check
from qkv_marking.tasks.decoder import small_model
from qkv_marking.tasks.decoder._steps import RIGHT, Text, compute


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def rotate(x, theta, first=0):
    """Rotate the pairs (i, i + d / 2) of x (heads, T, d); row 0 has the position `first`."""
    d = x.shape[-1]
    angle = (first + np.arange(x.shape[-2]))[:, None] * theta ** (-np.arange(0, d, 2) / d)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1
    )


class Decoder:
    """A correct decoder; wrong decoders override methods of this class."""

    def __call__(self, ids, weights, config):
        self.w, self.c = weights, config
        x = self.embed(weights["model.embed_tokens.weight"], ids)
        for layer in self.layers(config["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            self.p = {n[len(name) : -7]: a for n, a in weights.items() if n.startswith(name)}
            x = self.block(x)
        return self.head(x)

    def embed(self, table, ids):
        return table[ids]

    def layers(self, count):
        return range(count)

    def block(self, x):
        x = x + self.attend(self.norm(x, self.p["input_layernorm"]))
        return x + self.mlp(self.norm(x, self.p["post_attention_layernorm"]))

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.c["rms_norm_eps"]) * weight

    def positions(self, q, k, v):
        return rotate(q, self.c["rope_theta"]), rotate(k, self.c["rope_theta"]), v

    def repeat(self, a, times):
        return np.repeat(a, times, axis=0)

    def visible(self, tokens):
        return np.tri(tokens, dtype=bool)

    def attend(self, x):
        heads, groups = self.c["num_attention_heads"], self.c["num_key_value_heads"]
        q, k, v = (
            (x @ self.p[f"self_attn.{name}_proj"].T).reshape(len(x), n, -1).swapaxes(0, 1)
            for name, n in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k, v = self.positions(q, k, v)
        k, v = self.repeat(k, heads // groups), self.repeat(v, heads // groups)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        context = softmax(np.where(self.visible(len(x)), scores, -np.inf)) @ v
        return context.swapaxes(0, 1).reshape(len(x), -1) @ self.p["self_attn.o_proj"].T

    def gate(self, gate, up):
        return silu(gate) * up

    def mlp(self, x):
        gate, up = x @ self.p["mlp.gate_proj"].T, x @ self.p["mlp.up_proj"].T
        return self.gate(gate, up) @ self.p["mlp.down_proj"].T

    def head(self, x):
        table = self.w["model.embed_tokens.weight"]
        head = self.w.get("lm_head.weight", table)
        return self.norm(x, self.w["model.norm.weight"]) @ head.T


def made(**parts):
    """Return the right decoder with some methods replaced."""
    return type("Mine", (Decoder,), parts)()


# -- right answers --------------------------------------------------------------------------------


def with_loops(ids, weights, config):
    """Compute logits in loops over heads and words."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    d = config["hidden_size"] // heads
    half = d // 2

    def norm(row, weight):
        return row / math.sqrt(float(row @ row) / len(row) + config["rms_norm_eps"]) * weight

    def turned(row, position):
        row = row.copy()
        for i in range(half):
            angle = position / config["rope_theta"] ** (2 * i / d)
            a, b = row[i], row[i + half]
            row[i] = a * math.cos(angle) - b * math.sin(angle)
            row[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return row

    xs = [weights["model.embed_tokens.weight"][i] for i in ids]
    for layer in range(config["num_hidden_layers"]):
        p = {
            n.split(".", 3)[3]: a
            for n, a in weights.items()
            if n.startswith(f"model.layers.{layer}.")
        }
        keys, values, out = [], [], []
        for position, x in enumerate(xs):
            h = norm(x, p["input_layernorm.weight"])
            q, k, v = (p[f"self_attn.{n}_proj.weight"] @ h for n in "qkv")
            keys.append([turned(k[g * d : (g + 1) * d], position) for g in range(groups)])
            values.append([v[g * d : (g + 1) * d] for g in range(groups)])
            context = []
            for head in range(heads):
                group = head // (heads // groups)
                query = turned(q[head * d : (head + 1) * d], position)
                e = np.exp([query @ key[group] / math.sqrt(d) for key in keys])
                context.append(
                    sum(w * value[group] for w, value in zip(e / e.sum(), values, strict=True))
                )
            x = x + p["self_attn.o_proj.weight"] @ np.concatenate(context)
            h = norm(x, p["post_attention_layernorm.weight"])
            gate, up = p["mlp.gate_proj.weight"] @ h, p["mlp.up_proj.weight"] @ h
            out.append(x + p["mlp.down_proj.weight"] @ (silu(gate) * up))
        xs = out
    name = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return [weights[f"{name}.weight"] @ norm(x, weights["model.norm.weight"]) for x in xs]


def with_einsum(ids, weights, config):
    """Compute logits with einsum over grouped heads, and rotate pairs as complex numbers."""
    groups = config["num_key_value_heads"]
    each = config["num_attention_heads"] // groups
    d = config["hidden_size"] // config["num_attention_heads"]
    embed, tokens = weights["model.embed_tokens.weight"], len(ids)
    head = embed if config["tie_word_embeddings"] else weights["lm_head.weight"]
    turn = np.exp(
        1j * np.outer(np.arange(tokens), config["rope_theta"] ** (-np.arange(d // 2) * 2 / d))
    )

    def norm(x, weight):
        return (
            weight
            * x
            * (np.einsum("td,td->t", x, x) / x.shape[1] + config["rms_norm_eps"])[:, None] ** -0.5
        )

    def turned(x):
        z = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * turn
        return np.concatenate([z.real, z.imag], axis=-1)

    x = embed[ids]
    for layer in range(config["num_hidden_layers"]):

        def w(name, layer=layer):
            return weights[f"model.layers.{layer}.{name}.weight"]

        h = norm(x, w("input_layernorm"))
        q = turned(
            np.einsum("ti,gedi->getd", h, w("self_attn.q_proj").reshape(groups, each, d, -1))
        )
        k = turned(np.einsum("ti,gdi->gtd", h, w("self_attn.k_proj").reshape(groups, d, -1)))
        v = np.einsum("ti,gdi->gtd", h, w("self_attn.v_proj").reshape(groups, d, -1))
        scores = np.einsum("gead,gbd->geab", q, k) * d**-0.5 + np.triu(
            np.full((tokens, tokens), -1e30), 1
        )
        o = w("self_attn.o_proj").reshape(-1, groups, each, d)
        x = x + np.einsum("geab,gbd,iged->ai", softmax(scores), v, o)
        h = norm(x, w("post_attention_layernorm"))
        x = x + np.einsum(
            "tf,if->ti",
            silu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T),
            w("mlp.down_proj"),
        )
    return np.einsum("ti,vi->tv", norm(x, weights["model.norm.weight"]), head)


def in_float32(ids, weights, config):
    return Decoder()(ids, {name: a.astype(np.float32) for name, a in weights.items()}, config)


def with_positions_from_one(ids, weights, config):
    """Start positions at 1, and compute each row of logits in a separate call."""
    theta = config["rope_theta"]
    one = made(positions=lambda self, q, k, v: (rotate(q, theta, 1), rotate(k, theta, 1), v))
    return np.stack([one(ids[: n + 1], weights, config)[-1] for n in range(len(ids))])


@pytest.mark.parametrize(
    "decoder", [Decoder(), with_loops, with_einsum, in_float32, with_positions_from_one]
)
def test_a_right_decoder_gets_all_points(decoder):
    result = check(decoder, task="decoder")
    assert (result.passed, result.points) == (True, 10), str(result)
    assert (result.fragile, result.conventions) == ((), ())
    tried = "logits, words that are generated one after the other, a model of other sizes with"
    assert f"Tried: {tried} lm_head.weight." in result.message


def test_logits_of_the_last_row_alone_are_wrong():
    result = check(made(head=lambda self, x: Decoder.head(self, x)[-1]), task="decoder")
    assert (result.mistakes, result.points < 9) == (("decoder-last-row",), True), str(result)
    assert "only the logits (V,) after the last word" in result.message


def test_a_batch_of_one_will_do():
    result = check(
        lambda ids, weights, config: Decoder()(ids[0], weights, config)[None], task="decoder"
    )
    assert (result.passed, result.points) == (True, 10), str(result)
    assert "It takes only ids (1, T), not (T,)." in result.message


@pytest.mark.parametrize("ids", [[3], [12, 4, 2], [1, 1, 7, 5, 0, 9]])
def test_right_logits_of_the_untied_model_equal_qkv(tmp_path, ids):
    weights, config = small_model(tied=False)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(dict(weights), tmp_path / "model.safetensors")
    model = qkv.load(tmp_path, dtype=np.float64)
    right = compute(Text(np.array(ids), tied=False), RIGHT)
    assert np.allclose(model([np.array(ids)]).logits[0], right, rtol=1e-11)
    assert np.allclose(Decoder()(np.array(ids), weights, config), right, rtol=1e-11)


def test_right_logits_and_generated_ids_equal_qkv(tmp_path):
    weights, config = small_model()
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(dict(weights), tmp_path / "model.safetensors")
    model = qkv.load(tmp_path, dtype=np.float64)
    example = check(lambda ids, weights, config: np.zeros((len(ids), 11)), task="decoder").example
    assert np.allclose(model([example["ids"]]).logits[0], example["right"], rtol=1e-12)

    def decoder(ids, weights, config):
        if not config["tie_word_embeddings"]:
            return Decoder()(ids, weights, config)
        return model([ids]).logits[0]

    assert check(decoder, task="decoder").mistakes == ("answered-by-library",)
    ids = [2, 9]
    for _ in range(8):
        ids.append(int(np.argmax(Decoder()(np.array(ids), weights, config)[-1])))
    assert [int(one) for one in model.generate([2, 9], max_new_tokens=8).split()] == ids[2:]
    assert len({*ids}) > 3  # a wrong decoder may repeat one word


# -- wrong answers --------------------------------------------------------------------------------


def neighbours(x, theta):
    d = x.shape[-1]
    angle = np.arange(x.shape[-2])[:, None] * theta ** (-np.arange(0, d, 2) / d)
    a, b = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = a * np.cos(angle) - b * np.sin(angle)
    out[..., 1::2] = a * np.sin(angle) + b * np.cos(angle)
    return out


def at_speeds(speeds):
    """Return {"positions": method}; this method of a decoder rotates the queries and keys.

    Each pair of components has its own speed. From one position to the next, the angle of pair i
    grows by speeds(theta, d)[i].
    """

    def rotated(x, theta):
        d = x.shape[-1]
        angle = np.arange(x.shape[-2])[:, None] * speeds(theta, d)
        a, b = x[..., : d // 2], x[..., d // 2 :]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    return {
        "positions": lambda self, q, k, v: (
            rotated(q, self.c["rope_theta"]),
            rotated(k, self.c["rope_theta"]),
            v,
        )
    }


def both(rotation):
    return {
        "positions": lambda self, q, k, v: (
            rotation(q, self.c["rope_theta"]),
            rotation(k, self.c["rope_theta"]),
            v,
        )
    }


def post_norm(self, x):
    x = self.norm(x + self.attend(x), self.p["input_layernorm"])
    return self.norm(x + self.mlp(x), self.p["post_attention_layernorm"])


def without_residual(self, x):
    x = self.attend(self.norm(x, self.p["input_layernorm"]))
    return x + self.mlp(self.norm(x, self.p["post_attention_layernorm"]))


def norms_exchanged(self, x):
    x = x + self.attend(self.norm(x, self.p["post_attention_layernorm"]))
    return x + self.mlp(self.norm(x, self.p["input_layernorm"]))


def norm_of_the_mlp_left_out(self, x):
    normed = self.norm(x, self.p["input_layernorm"])
    return x + self.attend(normed) + self.mlp(normed)


def one_norm_for_both(self, x):
    x = x + self.attend(self.norm(x, self.p["input_layernorm"]))
    return x + self.mlp(self.norm(x, self.p["input_layernorm"]))


def mlp_without_norm(self, x):
    x = x + self.attend(self.norm(x, self.p["input_layernorm"]))
    return x + self.mlp(x)


def projected_as_it_is(name):
    """Return attention that uses one square weight matrix without its transpose."""

    def attend(self, x):
        key = f"self_attn.{name}"
        self.p = {**self.p, key: self.p[key].T}
        return Decoder.attend(self, x)

    return attend


def rotated_before_the_split(self, x):
    heads, groups = self.c["num_attention_heads"], self.c["num_key_value_heads"]
    q, k, v = (x @ self.p[f"self_attn.{name}_proj"].T for name in "qkv")
    q, k = rotate(q, self.c["rope_theta"]), rotate(k, self.c["rope_theta"])
    q, k, v = (
        a.reshape(len(x), n, -1).swapaxes(0, 1) for a, n in ((q, heads), (k, groups), (v, groups))
    )
    k, v = np.repeat(k, heads // groups, axis=0), np.repeat(v, heads // groups, axis=0)
    scores = np.where(np.tri(len(x)), q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]), -np.inf)
    joined = (softmax(scores) @ v).swapaxes(0, 1).reshape(len(x), -1)
    return joined @ self.p["self_attn.o_proj"].T


def without_final_norm(self, x):
    return x @ self.w["model.embed_tokens.weight"].T


def layer_norm(self, x, weight):
    return Decoder.norm(self, x - x.mean(axis=-1, keepdims=True), weight)


def by_the_width(self, x):
    """Divide the scores by sqrt(hidden_size) instead of sqrt(d), by scaling the query weights."""
    p, d = self.p, self.c["hidden_size"] // self.c["num_attention_heads"]
    self.p = {**p, "self_attn.q_proj": p["self_attn.q_proj"] * math.sqrt(d / self.c["hidden_size"])}
    return Decoder.attend(self, x)


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        (both(neighbours), "rotary-neighbours"),
        ({"positions": lambda self, q, k, v: (q, k, v)}, "rotary-missing"),
        ({"positions": lambda self, q, k, v: (rotate(q, 500), k, v)}, "rotary-one"),
        (
            {"positions": lambda self, q, k, v: (rotate(q, 500, 1), rotate(k, 500), v)},
            "rotary-apart",
        ),
        (
            {"positions": lambda self, q, k, v: (rotate(q, 500), rotate(k, 500, 1), v)},
            "rotary-apart",
        ),
        (
            {"positions": lambda self, q, k, v: tuple(rotate(a, 500) for a in (q, k, v))},
            "rotary-values",
        ),
        (at_speeds(lambda theta, d: -(theta ** (-np.arange(0, d, 2) / d))), "rotary-sign"),
        (at_speeds(lambda theta, d: theta ** (-np.arange(d // 2) / d)), "rotary-speed"),
        (at_speeds(lambda theta, d: theta ** (-np.arange(0, d, 2) / (4 * d))), "rotary-speed"),
        ({"repeat": lambda self, a, times: np.tile(a, (times, 1, 1))}, "groups-tiled"),
        ({"visible": lambda self, tokens: True}, "decoder-no-mask"),
        ({"visible": lambda self, tokens: np.tri(tokens, k=1, dtype=bool)}, "decoder-mask-ahead"),
        (
            {"visible": lambda self, tokens: np.tri(tokens, k=-1, dtype=bool)},
            "decoder-mask-diagonal",
        ),
        ({"gate": lambda self, gate, up: gate * silu(up)}, "gate-up-swapped"),
        ({"gate": lambda self, gate, up: gate * up}, "gate-missing"),
        ({"gate": lambda self, gate, up: silu(gate)}, "gate-missing"),
        ({"gate": lambda self, gate, up: np.maximum(gate, 0) * up}, "gate-other-activation"),
        ({"norm": layer_norm}, "decoder-layer-norm"),
        ({"norm": lambda self, x, weight: Decoder.norm(self, x, 1)}, "decoder-norm-weight"),
        (
            {"norm": lambda self, x, weight: Decoder.norm(self, x, 1 + weight)},
            "decoder-norm-weight",
        ),
        (
            {
                "norm": lambda self, x, weight: (
                    x / np.linalg.norm(x, axis=-1, keepdims=True) * weight
                )
            },
            "decoder-norm-root",
        ),
        ({"block": without_residual}, "decoder-no-residual"),
        ({"block": post_norm}, "decoder-norm-place"),
        ({"block": norms_exchanged}, "decoder-norms-exchanged"),
        ({"block": norm_of_the_mlp_left_out}, "decoder-norm-kept"),
        ({"block": one_norm_for_both}, "decoder-norm-shared"),
        ({"block": mlp_without_norm}, "decoder-no-norm"),
        ({"attend": projected_as_it_is("o_proj")}, "decoder-transposed"),
        ({"attend": projected_as_it_is("q_proj")}, "decoder-transposed"),
        ({"attend": rotated_before_the_split}, "rotary-before-split"),
        ({"head": without_final_norm}, "decoder-final-norm"),
        ({"embed": lambda self, table, ids: table[ids] * 24**0.5}, "decoder-embedding-scaled"),
        ({"layers": lambda self, count: [0] * count}, "decoder-layers"),
        ({"layers": lambda self, count: range(count - 1)}, "decoder-layers"),
        ({"layers": lambda self, count: reversed(range(count))}, "decoder-layers"),
        ({"attend": by_the_width}, "heads-scale"),
        ({"head": lambda self, x: Decoder.head(self, x)[0]}, "decoder-last-place"),
    ],
)
def test_a_mistake_is_told_by_its_name(parts, key):
    result = check(made(**parts), task="decoder")
    assert (result.mistakes, result.points < 9) == ((key,), True), str(result)
    assert len(result.hint) == 3
    assert all(result.hint)


def test_two_mistakes_are_told_apart():
    found = check(made(**both(neighbours), head=without_final_norm), task="decoder")
    assert {*found.mistakes} == {"rotary-neighbours", "decoder-final-norm"}
    assert 2 <= found.points <= 8


def test_a_hard_coded_rotary_base_is_fragile():
    result = check(made(**both(lambda x, theta: rotate(x, 10000.0))), task="decoder")
    assert (result.passed, result.fragile, result.points) == (True, ("rotary-base",), 9)


def test_a_hard_coded_eps_is_fragile():
    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * weight

    result = check(made(norm=norm), task="decoder")
    assert (result.passed, result.fragile, result.points) == (True, ("decoder-eps",), 9)


def test_probabilities_instead_of_logits_are_wrong():
    result = check(made(head=lambda self, x: softmax(Decoder.head(self, x))), task="decoder")
    assert (result.mistakes, result.points < 9) == (("decoder-probabilities",), True), str(result)


@pytest.mark.parametrize("contained", [lambda logits: (logits,), lambda logits: (logits, None)])
def test_logits_in_a_tuple_are_no_array(contained):
    result = check(
        lambda ids, weights, config: contained(Decoder()(ids, weights, config)), task="decoder"
    )
    assert (result.mistakes, result.points) == (("wrong-type",), 0)


@pytest.mark.parametrize(
    "changes",
    [
        lambda weights: weights.pop("model.norm.weight"),
        lambda weights: np.negative(*2 * [weights["model.norm.weight"]]),
    ],
)
def test_a_decoder_that_changes_the_weights_is_told_so(changes):
    def decoder(ids, weights, config):
        logits = Decoder()(ids, weights, config)
        changes(weights)
        return logits

    result = check(decoder, task="decoder")
    assert (result.mistakes, result.points < 9) == (("inputs-modified",), True), str(result)
    assert 'writes to its input weights["model.norm.weight"]' in result.message


def test_logits_in_a_list_have_one_axis_too_many():
    result = check(lambda ids, weights, config: [Decoder()(ids, weights, config)], task="decoder")
    assert result.mistakes == ("wrong-shape",)


def test_logits_that_the_next_call_overwrites_are_told_so():
    rows = np.empty((32, 32))

    def decoder(ids, weights, config):
        logits = Decoder()(ids, weights, config)
        given = rows[: logits.shape[0], : logits.shape[1]]
        given[:] = logits
        return given

    result = check(decoder, task="decoder")
    assert (result.mistakes, result.points < 9) == (("output-overwritten",), True), str(result)


def by_the_embeddings(self, x):
    table = self.w["model.embed_tokens.weight"]
    return self.norm(x, self.w["model.norm.weight"]) @ table.T


def always_by_lm_head(self, x):
    return self.norm(x, self.w["model.norm.weight"]) @ self.w["lm_head.weight"].T


def looked_up_in_lm_head(self, table, ids):
    return self.w.get("lm_head.weight", table)[ids]


def split_into(heads, groups):
    """Return attention with hard-coded numbers of query heads and key heads."""

    def attend(self, x):
        self.c = {**self.c, "num_attention_heads": heads, "num_key_value_heads": groups}
        return Decoder.attend(self, x)

    return attend


@pytest.mark.parametrize(
    ("parts", "kind", "key"),
    [
        ({"head": by_the_embeddings}, "fragile", "decoder-head-tied"),
        ({"embed": looked_up_in_lm_head}, "mistakes", "decoder-head-embeds"),
        (
            {"embed": looked_up_in_lm_head, "head": by_the_embeddings},
            "mistakes",
            "decoder-tables-exchanged",
        ),
        ({"layers": lambda self, count: range(2)}, "fragile", "decoder-written-down"),
        ({"attend": split_into(4, 2)}, "fragile", "decoder-written-down"),
        (both(lambda x, theta: rotate(x, 500.0)), "fragile", "decoder-written-down"),
        (
            {
                "norm": lambda self, x, weight: (
                    x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * weight
                )
            },
            "fragile",
            "decoder-written-down",
        ),
    ],
)
def test_problems_with_the_untied_model_are_named(parts, kind, key):
    result = check(made(**parts), task="decoder")
    found = {one: getattr(result, one) for one in ("mistakes", "fragile", "conventions")}
    assert found == {"mistakes": (), "fragile": (), "conventions": ()} | {kind: (key,)}, str(result)
    assert result.points == 9 if kind == "fragile" else 4 <= result.points <= 8
    assert "small_model(tied=False)" in str(result)


def test_unknown_mistakes_on_the_untied_model_keep_points():
    odd = made(layers=lambda self, count: range(count) if count == 2 else [0, 0, 1, 2])
    result = check(odd, task="decoder")
    assert (result.mistakes, result.points < 9) == (("unknown",), True)


def test_two_mistakes_of_the_other_model_are_told_apart():
    found = check(made(head=by_the_embeddings, layers=lambda self, n: range(2)), task="decoder")
    assert {*found.fragile} == {"decoder-head-tied", "decoder-written-down"}


def repeated(how):
    return {"repeat": lambda self, a, times: how(a, times)}


@pytest.mark.parametrize(
    ("parts", "key", "said"),
    [
        (
            repeated(lambda a, times: a),
            "groups-missing",
            "key heads and value heads are not repeated",
        ),
        (repeated(lambda a, times: np.repeat(a, times, axis=1)), "groups-axis", "the wrong axis"),
        (
            repeated(lambda a, times: np.repeat(a, 3, axis=0)),
            "heads-written-down",
            "a fixed number of heads",
        ),
        ({"attend": split_into(4, 4)}, "groups-split", "keys and values are split"),
        ({"attend": split_into(6, 2)}, "heads-written-down", "a fixed number of heads"),
        ({"attend": split_into(2, 2)}, "heads-written-down", "a fixed number of heads"),
        ({"layers": lambda self, count: range(6)}, "decoder-layers", "the model has 2 layers"),
        ({"head": always_by_lm_head}, "decoder-no-head", "'lm_head.weight', which this model does"),
        (
            {"norm": lambda self, x, weight: x * self.c["rms_norm_epsilon"]},
            "decoder-no-such-name",
            "'rms_norm_epsilon', which this model does not have",
        ),
    ],
)
def test_errors_are_named_by_their_mistake_and_line(parts, key, said):
    result = check(made(**parts), task="decoder")
    assert result.mistakes == (key,), str(result)
    words = " ".join(str(result).split())
    assert said in words
    assert ", in line " in words
    assert len({*result.hint}) == 3


def test_the_nearest_config_name_is_the_last_hint():
    result = check(made(norm=lambda self, x, w: x * self.c["rms_norm_epsilon"]), task="decoder")
    assert result.hint[-1] == "rms_norm_eps"


def test_an_untransposed_weight_is_named():
    def mlp(self, x):
        return self.gate(x @ self.p["mlp.gate_proj"], x @ self.p["mlp.up_proj"])

    result = check(made(mlp=mlp), task="decoder")
    assert (result.mistakes, result.points) == (("decoder-transposed",), 0)
    assert "(out, in)" in result.message


def test_unknown_mistakes_right_for_one_word_point_to_attention():
    odd = made(visible=lambda self, tokens: np.tri(tokens, dtype=bool) & (np.arange(tokens) != 1))
    result = check(odd, task="decoder")
    assert result.mistakes == ("unknown",)
    assert "the mistake is in attention" in " ".join(str(result).split())
    odd = made(embed=lambda self, table, ids: table[ids] + 1)
    assert "in attention" not in " ".join(str(check(odd, task="decoder")).split())


def test_the_example_is_the_shortest_failing_text():
    assert list(check(made(head=without_final_norm), task="decoder").example["ids"]) == [3]
    without_positions = made(positions=lambda self, q, k, v: (q, k, v))
    assert list(check(without_positions, task="decoder").example["ids"]) == [3, 5]


def test_a_mistake_is_shown_as_replaced_lines():
    result = check(
        made(norm=lambda self, x, weight: Decoder.norm(self, x, 1 + weight)), task="decoder"
    )
    assert result.diffs["decoder-norm-weight"] == (
        ("out = out * weight", "out = out * (1 + weight)"),
    )
    assert "- out = out * (1 + weight)" in result.text(3)
