"""A program for each client, with a function for each request that the client can send."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    """A client, and a program that uses it.

    Attributes:
        package: the name of its package, and the version with which it was tried.
        code: the program. Its functions have the names of `USES`.
        invalid: the package and the name of the exception for an invalid request (400).
        unauthorized: the same of the exception for a wrong key (401).
        second: whether the client is in the folder with openai 2.
    """

    package: str
    code: str
    invalid: str = "openai.BadRequestError"
    unauthorized: str = "openai.AuthenticationError"
    second: bool = False


# The functions of the programs, with the words of the documentation. The first argument of each is
# the key. A name that begins with `short` is for vectors of 64 dimensions.
USES = {
    "embeddings": "vectors",
    "short_embeddings": "vectors",
    "ranking": "ranking",
    "chat": "chat",
    "chat_stream": "chat",
    "completion": "completions",
    "completion_stream": "completions",
}

_OPENAI = """
from openai import OpenAI

def client(url, key):
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)

def embeddings(key, texts):
    answer = client(encoder, key).embeddings.create(model="any", input=texts)
    return [one.embedding for one in answer.data]

def short_embeddings(key, texts):
    answer = client(encoder, key).embeddings.create(model="any", input=texts, dimensions=64)
    return [one.embedding for one in answer.data]

def chat(key, messages):
    asked = client(decoder, key).chat.completions
    return asked.create(model="any", messages=messages, temperature=0).choices[0].message.content

def chat_stream(key, messages):
    asked = client(decoder, key).chat.completions
    parts = asked.create(
        model="any",
        messages=messages,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    return [part.choices[0].delta.content or "" for part in parts if part.choices]

def completion(key, prompt):
    asked = client(decoder, key).completions
    answer = asked.create(model="any", prompt=prompt, max_tokens=40, temperature=0)
    return answer.choices[0].text

def completion_stream(key, prompt):
    asked = client(decoder, key).completions
    parts = asked.create(
        model="any", prompt=prompt, max_tokens=40, temperature=0, stream=True
    )
    return [part.choices[0].text for part in parts]
"""

CLIENTS = {
    "OpenAI": Client("openai 3.57", _OPENAI),
    "OpenAI 2": Client("openai 2.54", _OPENAI, second=True),
    "LangChain": Client(
        "langchain-openai 1.7",
        """
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

def options(url, key):
    return {"base_url": f"{url}/v1", "api_key": key, "model": "any", "max_retries": 0}

def embeddings(key, texts):
    client = OpenAIEmbeddings(**options(encoder, key), check_embedding_ctx_length=False)
    return [client.embed_query(texts[0]), *client.embed_documents(texts[1:])]

def short_embeddings(key, texts):
    client = OpenAIEmbeddings(
        **options(encoder, key), check_embedding_ctx_length=False, dimensions=64
    )
    return client.embed_documents(texts)

def chat(key, messages):
    return ChatOpenAI(**options(decoder, key), temperature=0).invoke(messages).content

def chat_stream(key, messages):
    client = ChatOpenAI(**options(decoder, key), temperature=0)
    return [part.content for part in client.stream(messages)]

def completion(key, prompt):
    return OpenAI(**options(decoder, key), temperature=0, max_tokens=40).invoke(prompt)

def completion_stream(key, prompt):
    return list(OpenAI(**options(decoder, key), temperature=0, max_tokens=40).stream(prompt))
""",
    ),
    "LlamaIndex (vectors)": Client(
        "llama-index-embeddings-openai 0.7",
        """
from llama_index.embeddings.openai import OpenAIEmbedding

def client(key, **options):
    return OpenAIEmbedding(
        api_base=f"{encoder}/v1", api_key=key, model_name="any", max_retries=0, **options
    )

def embeddings(key, texts):
    first = client(key).get_query_embedding(texts[0])
    return [first, *client(key).get_text_embedding_batch(texts[1:])]

def short_embeddings(key, texts):
    return client(key, dimensions=64).get_text_embedding_batch(texts)
""",
    ),
    "LlamaIndex (texts)": Client(
        "llama-index-llms-openai-like 0.8",
        """
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

def client(key, is_chat_model):
    return OpenAILike(
        api_base=f"{decoder}/v1",
        api_key=key,
        model="any",
        is_chat_model=is_chat_model,
        max_retries=0,
        max_tokens=40,
        temperature=0,
    )

def chat(key, messages):
    return client(key, True).chat([ChatMessage(**one) for one in messages]).message.content

def chat_stream(key, messages):
    parts = client(key, True).stream_chat([ChatMessage(**one) for one in messages])
    return [part.delta for part in parts]

def completion(key, prompt):
    return client(key, False).complete(prompt, formatted=True).text

def completion_stream(key, prompt):
    return [part.delta for part in client(key, False).stream_complete(prompt, formatted=True)]
""",
        second=True,
    ),
    "LiteLLM": Client(
        "litellm 1.110",
        """
import litellm

litellm.suppress_debug_info = True

def options(url, key):
    return {"api_base": f"{url}/v1", "api_key": key, "num_retries": 0}

CALM = {"temperature": 0, "max_tokens": 40}

def embeddings(key, texts):
    answer = litellm.embedding("openai/any", input=texts, **options(encoder, key))
    return [one["embedding"] for one in answer.data]

def short_embeddings(key, texts):
    asked = {"input": texts, "dimensions": 64} | options(encoder, key)
    answer = litellm.embedding("openai/any", **asked, allowed_openai_params=["dimensions"])
    return [one["embedding"] for one in answer.data]

def ranking(key, query, documents):
    asked = {"query": query, "documents": documents, "api_key": key}
    found = []
    for provider in ("hosted_vllm", "cohere", "jina_ai"):
        answer = litellm.rerank(f"{provider}/any", api_base=ranker, **asked)
        found.append([[one["index"], one["relevance_score"]] for one in answer.results])
    assert all(np.allclose(one, found[0]) for one in found), found
    return found[0]

def chat(key, messages):
    answer = litellm.completion("openai/any", messages, **CALM, **options(decoder, key))
    return answer.choices[0].message.content

def chat_stream(key, messages):
    asked = {"messages": messages, "stream": True} | CALM
    parts = litellm.completion("openai/any", **asked, **options(decoder, key))
    return [part.choices[0].delta.content or "" for part in parts]

def completion(key, prompt):
    asked = {"model": "text-completion-openai/any", "prompt": prompt} | CALM
    return litellm.text_completion(**asked, **options(decoder, key)).choices[0].text

def completion_stream(key, prompt):
    asked = {"model": "text-completion-openai/any", "prompt": prompt, "stream": True} | CALM
    parts = litellm.text_completion(**asked, **options(decoder, key))
    return [part.choices[0].text or "" for part in parts]
""",
        invalid="litellm.BadRequestError",
        unauthorized="litellm.AuthenticationError",
    ),
    "Haystack": Client(
        "haystack-ai 3.4",
        """
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret

def options(url, key):
    token = Secret.from_token(key)
    return {"api_base_url": f"{url}/v1", "api_key": token, "model": "any", "max_retries": 0}

def embeddings(key, texts, **short):
    asked = options(encoder, key) | short
    first = OpenAITextEmbedder(**asked).run(texts[0])["embedding"]
    embedder = OpenAIDocumentEmbedder(**asked, progress_bar=False, raise_on_failure=True)
    documents = embedder.run([Document(content=text) for text in texts[1:]])["documents"]
    return [first, *(one.embedding for one in documents)]

def short_embeddings(key, texts):
    return embeddings(key, texts, dimensions=64)

def chat(key, messages):
    client = OpenAIChatGenerator(**options(decoder, key), generation_kwargs={"temperature": 0})
    return client.run([ChatMessage.from_user(messages[0]["content"])])["replies"][0].text

def chat_stream(key, messages):
    pieces = []
    client = OpenAIChatGenerator(
        **options(decoder, key),
        generation_kwargs={"temperature": 0},
        streaming_callback=lambda piece: pieces.append(piece.content),
    )
    client.run([ChatMessage.from_user(messages[0]["content"])])
    return pieces
""",
    ),
    "Hugging Face": Client(
        "huggingface_hub 2.4",
        """
from huggingface_hub import InferenceClient

def embeddings(key, texts):
    client = InferenceClient(base_url=encoder, api_key=key)
    return client.feature_extraction(texts).tolist()

def chat(key, messages):
    client = InferenceClient(base_url=decoder, api_key=key)
    return client.chat_completion(messages, temperature=0).choices[0].message.content

def chat_stream(key, messages):
    client = InferenceClient(base_url=decoder, api_key=key)
    parts = client.chat_completion(messages, temperature=0, stream=True)
    return [part.choices[0].delta.content or "" for part in parts if part.choices]
""",
        invalid="huggingface_hub.BadRequestError",
        unauthorized="huggingface_hub.HfHubHTTPError",
    ),
    "Chroma": Client(
        "chromadb 1.5",
        """
import os

import chromadb
from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

def embeddings(key, texts):
    os.environ["CHROMA_OPENAI_API_KEY"] = key
    function = OpenAIEmbeddingFunction(api_base=f"{encoder}/v1", model_name="any")
    store = chromadb.EphemeralClient().get_or_create_collection(
        "texts", embedding_function=function
    )
    names = [str(number) for number in range(len(texts))]
    store.add(ids=names, documents=texts)
    assert store.query(query_texts=["a boat on the water"], n_results=1)["ids"] == [["1"]]
    kept = store.get(include=["embeddings"])
    return [kept["embeddings"][kept["ids"].index(name)].tolist() for name in names]

def short_embeddings(key, texts):
    function = OpenAIEmbeddingFunction(
        api_base=f"{encoder}/v1", model_name="text-embedding-3-small", dimensions=64
    )
    return [vector.tolist() for vector in function(texts)]
""",
    ),
    "Cohere": Client(
        "cohere 7.3",
        """
import cohere

def ranking(key, query, documents):
    found = []
    for client in (cohere.Client, cohere.ClientV2):
        with_key = client(api_key=key, base_url=ranker)
        answer = with_key.rerank(model="any", query=query, documents=documents)
        found.append([[one.index, one.relevance_score] for one in answer.results])
    assert found[0] == found[1], found
    return found[0]
""",
        invalid="cohere.BadRequestError",
        unauthorized="cohere.UnauthorizedError",
    ),
}
