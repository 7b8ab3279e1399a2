"""A model as an encoder: texts to vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.extras import need
from qkv.models.run.edit import EditedRun
from qkv.models.run.fit_edits import check
from qkv.models.run.inputs import check_device
from qkv.models.sentence.encode import OPTIONS, Encoder
from qkv.models.sentence.vectors import as_tensors, check_precision, quantized
from qkv.models.sentence.windows import checked_texts
from qkv.models.streaming import StreamingModel
from qkv.text import Tokenized


class EncoderModel(StreamingModel):
    """The methods of `Model` that a model of sentence-transformers has too."""

    def encode(
        self,
        inputs: str | Iterable[str],
        *,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool | None = None,
        output_value: str | None = "sentence_embedding",
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        pool: Any = None,
        chunk_size: int | None = None,
        task: str | None = None,
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
    ) -> Any:
        """A vector for each text, pooled and scaled as the model's own files say.

        Texts of like length are run together, laid end to end: no padding is computed. A text
        longer than `max_seq_length` is cut as in `trace`. Blanks around a text are left out.

        Args:
            inputs: one text or any iterable of texts.
            batch_size: how many texts of 128 tokens are run at once: more of shorter ones, fewer of
                longer ones.
            show_progress_bar: None for one on a terminal if it takes long.
            normalize_embeddings: whether vectors are scaled to length 1; None for what the
                model's files say.
            output_value: "sentence_embedding", or "token_embeddings" for the last vectors of all
                tokens, special ones included, or None for both, by name.
            prompt_name: which of the prompts that the model's files name goes before each text;
                without one, that which they name as the default, if they do.
            prompt: what goes before each text, in place of those.
            truncate_dim: how many numbers of each vector are kept, its first ones; None for all.
                As in sentence-transformers, vectors that the model's files scale to length 1 are
                scaled before they are cut, and `normalize_embeddings=True` scales what is left.
                Vectors of tokens are not cut.
            precision: "float32", or None, leaves vectors as they are. "int8" and "uint8" divide
                what lies between the least and the largest that a number is among these texts into
                256 steps; other texts have other steps. "binary" and "ubinary" keep whether each
                number is above 0, eight of them in an int8 (less 128) or uint8.
            convert_to_numpy: False for a list of tensors of torch, one for each text.
            convert_to_tensor: True for one tensor of torch, (n, D).
            device: None or "cpu", where everything is computed.
            pool: processes that share the work, a `qkv.models.Pool` of this model.
            chunk_size: how many texts each of them gets at a time; a tenth of its share if it is
                not said.
            task: what the texts are for ("query", "document"): which route they take, of a model
                that has routes; None for the default one.
            ablate: heads to go without, as in `trace`; with any of these three, all texts are cut
                into tokens before the first is run.
            hide: words, places and edges that are not looked at, as in `trace`; tokens of a prompt
                count as places.
            edit: activations to change, as in `trace`. A function gets the texts that are run
                together, of like length in any order, and `at.texts` says which these are; arrays
                are indexed by text as they were given.

        Returns:
            (n, D) in the order of the texts, (D,) for one string; (0, D) for no text. A list of
            (T_i, D), or (T, D), for "token_embeddings"; for None a list of dicts, or a dict, with
            "input_ids" and "attention_mask" (T_i,), "token_embeddings" (T_i, D) and
            "sentence_embedding" (D,). float32, or float64 for a model of that, or what `precision`
            says. With `truncate_dim`, that number stands in the place of D; with bits, an eighth of
            it, rounded up.

        Raises:
            TypeError: a text is not a string, or the texts are a dict; as for `trace`.
            ValueError: a text has no token at all, there is no such prompt or route, one text
                alone is to be divided into steps, or an argument makes no sense; as for `trace`.
            ImportError: tensors are asked for, and torch is not there.

        Source:
            Steps and bits: sentence-transformers, `quantize_embeddings`.

        >>> import qkv
        >>> qkv.load("random").encode("I love you").shape
        (8,)
        >>> qkv.load("random").encode(["I love you"], truncate_dim=3).shape
        (1, 3)
        >>> qkv.load("random").encode(["I love you"], precision="ubinary").shape
        (1, 1)
        """
        check_device(device, "encode")
        precision = "float32" if precision is None else precision
        check_precision(precision, call="encode", output_value=output_value)
        tensors = convert_to_tensor or not convert_to_numpy
        torch = need("torch", "torch") if tensors else None
        encoder = self.text_encoder(
            batch_size=batch_size,
            normalize_embeddings=normalize_embeddings,
            output_value=output_value,
            prompt_name=prompt_name,
            prompt=prompt,
            truncate_dim=truncate_dim,
            task=task,
        )
        model = self._by_task(task, "encode")
        texts = [inputs] if isinstance(inputs, str) else inputs

        edits = edits_of(edit, ablate, hide, call="encode")
        check(edits, model._body, model._reads)

        def fit(batch: Sequence[Tokenized]) -> tuple[list[Tokenized], EditedRun]:
            batch = model._swapped(edits, batch)
            return batch, model._fit(edits, batch)

        if pool is not None:
            found = self._by_pool(pool, encoder, texts, chunk_size, show_progress_bar, not edits)
        elif not edits:
            found = encoder.all(texts, show_progress_bar)
        else:
            found = encoder.edited(texts, fit, show_progress_bar)
        if precision != "float32":
            found = quantized(found, precision, call="encode")
        if torch is not None:
            found = as_tensors(found, torch, joined=convert_to_tensor)
        return found[0] if isinstance(inputs, str) else found

    def _by_pool(
        self,
        pool: Any,
        encoder: Encoder,
        texts: Any,
        chunk_size: int | None,
        show: bool | None,
        is_plain: bool,
    ) -> Any:
        """What a pool makes of texts, by the options of an encoder."""
        if pool.model is not self:
            raise ValueError(
                f"encode: the pool is of {pool.model.name}, another model: start one of this model"
            )
        if not is_plain:
            raise ValueError(
                "encode: pool and ablate, hide or edit do not go together: leave one of them out"
            )
        options = {name: getattr(encoder, name) for name in OPTIONS}
        checked = [*checked_texts(texts, "encode")]
        parts = pool.encode(checked, chunk_size, show, encoder.limit, **options) if checked else []
        if encoder.output_value == "sentence_embedding":
            return np.concatenate([encoder.all([]), *parts])
        return [one for part in parts for one in part]

    def encode_query(
        self,
        inputs: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """The same as `encode` for the task "query", behind that prompt without another.

        Args:
            inputs: one text or any iterable of texts.
            prompt_name: as for `encode`.
            prompt: as for `encode`.
            options: the others of `encode`.

        Returns:
            As `encode`; of a model whose files name no prompts and no routes the same.

        Raises:
            TypeError: as for `encode`.
            ValueError: as for `encode`.

        >>> import qkv
        >>> qkv.load("random").encode_query("I love you").shape
        (8,)
        """
        prompt_name = "query" if prompt is None and prompt_name is None else prompt_name
        return self.encode(inputs, prompt_name=prompt_name, prompt=prompt, task="query", **options)

    def encode_document(
        self,
        inputs: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """The same as `encode` for the task "document", behind that prompt without another.

        Args:
            inputs: one text or any iterable of texts.
            prompt_name: as for `encode`.
            prompt: as for `encode`.
            options: the others of `encode`.

        Returns:
            As `encode`; of a model whose files name no prompts and no routes the same.

        Raises:
            TypeError: as for `encode`.
            ValueError: as for `encode`.

        >>> import qkv
        >>> qkv.load("random").encode_document(["I love you"]).shape
        (1, 8)
        """
        prompt_name = "document" if prompt is None and prompt_name is None else prompt_name
        return self.encode(
            inputs, prompt_name=prompt_name, prompt=prompt, task="document", **options
        )
