"""A typical server of sentence vectors, for comparison.

python -m benchmarks.peer_server FOLDER PORT
"""

import sys


def main(folder: str, port: str) -> None:
    """Run FastAPI and sentence-transformers on uvicorn, with one worker."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    from sentence_transformers import SentenceTransformer

    app = FastAPI()
    model = SentenceTransformer(folder, device="cpu")

    class Body(BaseModel):
        input: str | list[str]

    @app.post("/v1/embeddings")
    def embed(body: Body) -> dict:
        texts = [body.input] if isinstance(body.input, str) else body.input
        vectors = model.encode(texts).tolist()
        return {"data": [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]}

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
