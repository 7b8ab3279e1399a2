"""What docs/coming-from.md says of other libraries, run: `cd tests && python -m parity.peers`.

Nothing is timed. For each row whose library is installed it prints how far its result is from ours,
as a share of the largest value, and ends with an error if one is further than 1e-4. SAELens needs
an older TransformerLens than the page has, and so an environment of its own. The decoder
is a GPT-2, or with an argument `gpt_neox` or `llama`, of random weights.
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
}  # of a library, where it has another name
FOLDERS = {
    '"gpt2"': "decoder",
    '"my-gpt2"': "changed",
    '"bert-base-uncased"': "encoder",
}  # what the page loads
BOUND = 1e-4
LOWEST = -1e30  # a score that is hidden
HEAD = 1, 2  # the layer and the head that rows name

Found = dict[str, Any]


def main() -> None:
    """Run every row of theirs, in the order of the page."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")  # of libraries that are not ours
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
    """The names that its set-up gives, or None where it is not installed."""
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
    """Run code that lies in a file, which nnsight reads."""
    path.write_text(code, encoding="utf-8")
    exec(compile(code, path, "exec"), names)


def away(theirs: Any, ours: Any) -> float:
    """The largest difference, as a share of the largest value; texts are alike or not."""
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
    """What a cache and a trace hold under the same names, where it is the same."""
    *_, cache = theirs.values()
    *_, trace = ours.values()
    ours_alone = ("logits", "full_embed", "rot_q", "rot_k")  # the last two of GPT-NeoX
    missing = [name for name in trace.names() if name not in cache]
    assert all(name.endswith(ours_alone) for name in missing), missing
    both = [name for name in trace.names() if name in cache and "normalized" not in name]
    return max(away(cache[name], trace[name]) for name in both)


def shares(theirs: Found, ours: Found) -> float:
    """The shares of embeddings, of attention with the bias of its output, and of MLPs."""
    one, other = ({k: float(v) for k, v in theirs["shares"].items()}, ours["shares"])
    mlp = [one[f"{layer}_mlp_out"] for layer in range(len(other["mlp"]))]
    return max(
        away(one["embed"] + one.get("pos_embed", 0), other["embed"]),
        away(mlp, other["mlp"]),
    )


def weights(theirs: Found, ours: Found) -> float:
    """Four weights in a tuple and by their names, heads that are shared repeated; two circuits."""
    names, each = ("W_Q", "W_K", "W_V", "W_O"), []
    for name, one in zip(names, theirs["weights"], strict=True):
        other = getattr(ours["weights"], name)
        each.append(away(one.repeat_interleave(len(other) // len(one), 0), other))
    return max(*each, *(away(theirs[name], ours[name]) for name in ("qk", "ov")))


def spelled(theirs: Found, ours: Found) -> float:
    """Tokens with a blank, and as the vocabulary has them."""
    words = [word.replace("Ġ", " ") for word in ours["words"]]
    return max(away(theirs["words"], words), away(theirs["position"], ours["position"]))


def guesses(theirs: Found, ours: Found) -> float:
    """Words with a blank, and with the mark of letters that continue one."""
    words = [word.strip() if not word.isalpha() else f"##{word}" for word in theirs["words"]]
    return max(away(words, ours["words"]), away(theirs["probabilities"], ours["probabilities"]))


def written(theirs: Found, ours: Found) -> float:
    """A text that begins with what it continues, and one that does not."""
    return float(not theirs["written"].endswith(ours["written"]))


def moved(theirs: Found, ours: Found) -> float:
    """How far the metric moves, and where to, which differ by the same everywhere."""
    one, other = theirs["estimate"].detach().numpy(), ours["estimate"]
    return away(one + (other - one)[0, 0], other)


def scores(theirs: Found, ours: Found) -> float:
    """Means over all queries; of ours that of induction is over fewer, the same for all heads."""
    one, other = theirs["scores"], ours["scores"]
    few = other["induction"] / one["induction"].numpy()
    return max(
        *(away(one[name], other[name]) for name in ("previous", "same")),
        away(few, np.full_like(few, few[0, 0])),
    )


def compositions(theirs: Found, ours: Found) -> float:
    """Kinds in capital letters, and in small ones."""
    each = ours["scores"].items()
    return max(away(theirs["scores"][kind.upper()].scores, array) for kind, array in each)


def drawn(theirs: Found, ours: Found) -> float:
    """The weights in the page that bertviz makes, and those of ours."""
    return away(in_page(theirs["view"])[HEAD], ours["view"].to_dict()["weights"])


def both_drawn(theirs: Found, ours: Found) -> float:
    """The weights of all heads in two pages, and in one."""
    sides = zip(theirs["view"], ours["view"].sides, strict=True)
    return max(away(in_page(page), side.heads.weights) for page, side in sides)


def in_page(page: Any) -> np.ndarray:
    """The weights (layers, heads, T, T) that a page of bertviz holds."""
    begin = page.data.index('{"attention"')
    return np.array(json.JSONDecoder().raw_decode(page.data, begin)[0]["attention"][0]["attn"])


def tables(theirs: Found, ours: Found) -> float:
    """Biases in a tuple and by their names, and two tables."""
    names = ("b_Q", "b_K", "b_V", "b_O")
    pairs = zip(names, theirs["biases"], strict=True)
    each = [away(one, getattr(ours["weights"], name)) for name, one in pairs]
    return max(*each, *(away(theirs[name], ours[name]) for name in ("embedding", "unembedding")))


def pictured(theirs: Found, ours: Found) -> float:
    """The numbers of two pictures."""
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
