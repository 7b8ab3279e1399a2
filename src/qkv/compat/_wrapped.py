"""`Wrapped`, a qkv model with the attributes that all sentence-transformers models have."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from qkv._argument_errors import type_error, value_error
from qkv.files import StrPath
from qkv.models import Model, Pool, load
from qkv.models.run.text_reader import check_device

# Arguments that choose how a file is found or which code runs; they do not change what is computed.
_IGNORED = {"trust_remote_code", "local_files_only", "token", "use_auth_token", "model_card_data"}
_DTYPES = ("dtype", "torch_dtype")


class Wrapped:
    """A qkv model; attributes that this class lacks are read from the model.

    Args:
        model_name_or_path: as in `qkv.load`, or a `qkv.Model`. A name without an organisation is
            also looked up under "sentence-transformers/".
        device: None or "cpu".
        prompts: prompts in addition to those in the model's files, keyed by name.
        default_prompt_name: the name of the prompt to use if a call does not name one.
        revision: as in `qkv.load`.
        model_kwargs: only "dtype" (or "torch_dtype"), as in `qkv.load`.
        backend: "torch" or "qkv"; it has no effect.
        others: sentence-transformers arguments that do not change the results; they are ignored.

    Raises:
        TypeError: an argument is not supported.
        ValueError: an argument has an invalid value.
        FileNotFoundError: no such model exists.
    """

    def __init__(
        self,
        model_name_or_path: "StrPath | Model | None" = None,
        *,
        device: Any = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        revision: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        backend: str = "torch",
        **others: Any,
    ) -> None:
        for name, value in others.items():
            if value is not None and name not in _IGNORED:
                raise type_error(f"{name} is not supported: omit it, or use qkv.load")
        if backend not in ("torch", "qkv"):
            raise value_error(f"backend is {backend!r}: omit it, because qkv has only one backend")
        check_device(device)
        kwargs = dict(model_kwargs or {})
        dtypes = [
            str(kwargs.pop(name)).removeprefix("torch.") for name in _DTYPES if name in kwargs
        ]
        if kwargs:
            raise type_error(f"model_kwargs has {', '.join(kwargs)}; pass only dtype")
        dtype = next((name for name in dtypes if name not in ("auto", "None")), None)
        given = model_name_or_path
        self._model: Any = given if isinstance(given, Model) else _load(given, revision, dtype)
        self.prompts = {**self._model.prompts, **(prompts or {})}
        self.default_prompt_name = default_prompt_name or self._model.sentence.default_prompt
        if self.default_prompt_name is not None:
            self._prompt(None, self.default_prompt_name)

    def __getattr__(self, name: str) -> Any:
        if name == "_model":  # not set yet, for example while the object is unpickled
            raise AttributeError(name)
        return getattr(self._model, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r})"

    @property
    def device(self) -> str:
        """Always "cpu"."""
        return "cpu"

    @property
    def max_seq_length(self) -> int | None:
        """The maximum number of tokens in a text."""
        limit: int | None = self._model.max_seq_length
        return limit

    @max_seq_length.setter
    def max_seq_length(self, limit: int | None) -> None:
        self._model.max_seq_length = limit

    def get_max_seq_length(self) -> int | None:
        """Return `max_seq_length`."""
        return self.max_seq_length

    def to(self, device: Any = None, *_: Any, **others: Any) -> Self:
        """Check that the device is the CPU, and return this object."""
        check_device(others.get("device", device))
        return self

    def cpu(self) -> Self:
        """Return this object, which is on the CPU."""
        return self

    def eval(self) -> Self:
        """Return this object: qkv has no dropout, so training and evaluation do not differ."""
        return self

    def save(self, path: StrPath, *_: Any, **__: Any) -> None:
        """Save the model in a folder; further sentence-transformers arguments are ignored."""
        self._model.save(path)

    save_pretrained = save

    def start_multi_process_pool(self, target_devices: Any = None) -> Pool:
        """Start processes that share the work: one for each device, four by default."""
        devices = ["cpu"] * 4 if target_devices is None else list(target_devices)
        for device in devices:
            check_device(device)
        return Pool(self._model, len(devices))

    @staticmethod
    def stop_multi_process_pool(pool: Pool) -> None:
        """End the processes."""
        pool.close()

    def _prompt(self, prompt: str | None, name: str | None) -> str | None:
        """Return the text to put before each text; None for a model that reads images."""
        name = self.default_prompt_name if name is None else name
        if prompt is None and name is not None:
            if name not in self.prompts:
                known = ", ".join(self.prompts)
                raise value_error(f"unknown prompt {name!r:.80}: the prompts are {known}")
            prompt = self.prompts[name]
        return (prompt or "") if self._model.can("text") else prompt


def _load(name: StrPath | None, revision: str | None, dtype: Any) -> Model:
    try:
        return load(name, revision=revision, dtype=dtype)
    except FileNotFoundError:
        if name is None or len(Path(name).parts) != 1:
            raise
        try:
            return load(f"sentence-transformers/{name}", revision=revision, dtype=dtype)
        except FileNotFoundError:
            pass
        raise
