"""Run the other libraries' code in docs/coming-from.md: `cd tests && python -m parity.peers`.

For each row whose library is installed, print how far its result is from ours, relative to the
largest value, and end with an error if a difference exceeds 1e-4. Nothing is timed. SAELens needs
an older TransformerLens than the page uses, and therefore an environment of its own. The decoder is
a GPT-2 with random weights; the argument `gpt_neox` or `llama` selects another family.
"""

import ast
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from .coming_from import PAGE, Theirs, assigned, setups

MODULES = {
    "TransformerLens": "transformer_lens",
    "SAELens": "sae_lens",
}  # libraries whose Python module has another name
FOLDERS = {
    '"gpt2"': "decoder",
    '"my-gpt2"': "changed",
    '"bert-base-uncased"': "encoder",
}  # model names in the page's code, and the folders that replace them
BOUND = 1e-4
LOWEST = -1e30  # a score below this is masked
HEAD = 1, 2  # the layer and the head in the page's code for `head_view`

Found = dict[str, Any]


def main() -> None:
    """For each row of the page, run the other library's code and compare its result with qkv's.

    The rows are in the order of the page.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")  # the other libraries warn
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page = Theirs(folder, *sys.argv[1:])
        spaces = {library: begun(library, code, page, folder) for library, code in setups().items()}
        bridge = (spaces["TransformerLens"] or {}).get("model")
        if bridge is not None:
            begun_with = bridge.to_tokens(page.text, prepend_bos=True)[0]
            assert away(begun_with, page.names["with_bos"].ids) == 0
        worst = 0.0
        for number, row in sorted(page.rows.items()):
            names = spaces.get(row.library)
            if names is None or (sys.argv[1:] and ".transformer." in row.theirs):
                why = "not of this version" if names is None else "names the modules of GPT-2"
                print(f"{number:3}  {row.library:15}  {why}")
                continue
            run(row.theirs, names, folder / f"row{number}.py")
            found = {key: names[key] for key in assigned(row.theirs)}
            ours = page.found[number]
            if isinstance(ours, Exception):
                raise ours
            if number in COMPARED:
                off = COMPARED[number](found, ours)
            else:
                last = assigned(ast.unparse(ast.parse(row.ours).body[-1]))
                off = max(away(found[key], ours[key]) for key in last)
            worst = max(worst, off)
            print(f"{number:3}  {row.library:15}  {off:.0e}")
    if worst > BOUND:
        sys.exit(f"a row is {worst:.0e} away")


def begun(library: str, code: str, page: Theirs, folder: Path) -> Found | None:
    """Run the code that sets up a library, and return its variables.

    Return None if the library is not installed in the version that the page names.
    """
    module = MODULES.get(library, library)
    if find_spec(module) is None:
        return None
    for number in re.findall(rf"{library} (\d+\.\d+)", PAGE.read_text(encoding="utf-8")):
        here = metadata.version(module)
        if not here.startswith(f"{number}."):
            print(f"the page is of {library} {number}, and here is {here}")
            return None
    for name, place in FOLDERS.items():
        code = code.replace(name, repr(str(folder / place)))
    names: Found = {
        key: getattr(page, key)
        for key in ("text", "texts", "clean", "corrupted", "sae_folder", "folder")
    }
    names["torch"] = torch
    run(code, names, folder / f"{library}.py")
    return names


def run(code: str, names: Found, path: Path) -> None:
    """Run code from a file, because nnsight reads the source."""
    path.write_text(code, encoding="utf-8")
    exec(compile(code, path, "exec"), names)


def away(theirs: Any, ours: Any) -> float:
    """Return the largest difference relative to the largest value; of texts, 0 if equal, else 1."""
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else np.asarray(theirs)
    ours = np.asarray(ours)
    assert theirs.shape == ours.shape, f"{theirs.shape}, and ours {ours.shape}"
    if theirs.dtype.kind in "UO":
        return float((theirs != ours).any())
    hidden = np.isneginf(ours)
    assert ((theirs < LOWEST) == hidden).all()
    theirs, ours = (np.where(hidden, 0, x).astype(np.float64) for x in (theirs, ours))
    return float(np.abs(theirs - ours).max() / np.abs(ours).max())


def caches(theirs: Found, ours: Found) -> float:
    """Compare the activations that a cache and a trace share, except the normalized ones."""
    *_, cache = theirs.values()
    *_, trace = ours.values()
    ours_alone = ("logits", "full_embed", "rot_q", "rot_k")  # the last two only in GPT-NeoX
    missing = [name for name in trace.names() if name not in cache]
    assert all(name.endswith(ours_alone) for name in missing), missing
    both = [name for name in trace.names() if name in cache and "normalized" not in name]
    return max(away(cache[name], trace[name]) for name in both)


def shares(theirs: Found, ours: Found) -> float:
    """Compare the shares of embeddings and of MLPs."""
    one, other = ({k: float(v) for k, v in theirs["shares"].items()}, ours["shares"])
    mlp = [one[f"{layer}_mlp_out"] for layer in range(len(other["mlp"]))]
    return max(
        away(one["embed"] + one.get("pos_embed", 0), other["embed"]), away(mlp, other["mlp"])
    )


def weights(theirs: Found, ours: Found) -> float:
    """Compare W_Q, W_K, W_V and W_O, and the QK and OV circuits.

    If query heads share a key/value head, qkv repeats this head's weights for each query head. So
    the other library's weights are repeated before the comparison.
    """
    names, each = ("W_Q", "W_K", "W_V", "W_O"), []
    for name, one in zip(names, theirs["weights"], strict=True):
        other = getattr(ours["weights"], name)
        each.append(away(one.repeat_interleave(len(other) // len(one), 0), other))
    return max(*each, *(away(theirs[name], ours[name]) for name in ("qk", "ov")))


def spelled(theirs: Found, ours: Found) -> float:
    """Compare the tokens and the position that the two libraries find.

    Before a word, the other library's tokens have a space, and qkv's tokens have the vocabulary's
    `Ġ`.
    """
    words = [word.replace("Ġ", " ") for word in ours["words"]]
    return max(away(theirs["words"], words), away(theirs["position"], ours["position"]))


def guesses(theirs: Found, ours: Found) -> float:
    """Compare guesses: in theirs a space begins a word, in ours `##` continues one."""
    words = [word.strip() if not word.isalpha() else f"##{word}" for word in theirs["words"]]
    return max(away(words, ours["words"]), away(theirs["probabilities"], ours["probabilities"]))


def written(theirs: Found, ours: Found) -> float:
    """Compare generated texts; the other library's text begins with the prompt, qkv's does not."""
    return float(not theirs["written"].endswith(ours["written"]))


def moved(theirs: Found, ours: Found) -> float:
    """Compare estimates, which may differ by one constant.

    The other library estimates changes of the metric, and qkv estimates new values of the metric.
    """
    one, other = theirs["estimate"].detach().numpy(), ours["estimate"]
    return away(one + (other - one)[0, 0], other)


def scores(theirs: Found, ours: Found) -> float:
    """Compare the scores of heads.

    For induction, TransformerLens averages over all queries, and qkv averages over fewer queries.
    The ratio of the two scores must be the same for all heads.
    """
    one, other = theirs["scores"], ours["scores"]
    few = other["induction"] / one["induction"].numpy()
    return max(
        *(away(one[name], other[name]) for name in ("previous", "same")),
        away(few, np.full_like(few, few[0, 0])),
    )


def compositions(theirs: Found, ours: Found) -> float:
    """Compare compositions, whose kinds are uppercase in theirs and lowercase in ours."""
    each = ours["scores"].items()
    return max(away(theirs["scores"][kind.upper()].scores, array) for kind, array in each)


def drawn(theirs: Found, ours: Found) -> float:
    """Compare the weights of one head in bertviz's page and in our view."""
    return away(in_page(theirs["view"])[HEAD], ours["view"].to_dict()["weights"])


def both_drawn(theirs: Found, ours: Found) -> float:
    """Compare the weights of all heads in bertviz's two pages and in our one view."""
    sides = zip(theirs["view"], ours["view"].sides, strict=True)
    return max(away(in_page(page), side.heads.weights) for page, side in sides)


def in_page(page: Any) -> np.ndarray:
    """Return the weights (layers, heads, T, T) in a page of bertviz."""
    begin = page.data.index('{"attention"')
    return np.array(json.JSONDecoder().raw_decode(page.data, begin)[0]["attention"][0]["attn"])


def tables(theirs: Found, ours: Found) -> float:
    """Compare b_Q, b_K, b_V and b_O, and the tables of embedding and unembedding."""
    names = ("b_Q", "b_K", "b_V", "b_O")
    pairs = zip(names, theirs["biases"], strict=True)
    each = [away(one, getattr(ours["weights"], name)) for name, one in pairs]
    return max(*each, *(away(theirs[name], ours[name]) for name in ("embedding", "unembedding")))


def pictured(theirs: Found, ours: Found) -> float:
    """Compare the values that two pictures draw."""
    return away(theirs["view"].data[0].z, ours["view"].to_dict()["results"][0]["values"])


COMPARED: Mapping[int, Callable[[Found, Found], float]] = {
    1: caches,
    7: caches,
    11: written,
    12: spelled,
    13: guesses,
    17: shares,
    18: lambda theirs, ours: away(theirs["shares"][:, 0], np.ravel(ours["shares"])),
    19: weights,
    27: moved,
    35: scores,
    36: compositions,
    38: drawn,
    39: both_drawn,
    44: lambda theirs, ours: away(theirs["shares"][:, 0], np.concatenate(ours["shares"])),
    46: tables,
    51: pictured,
}


if __name__ == "__main__":
    main()
