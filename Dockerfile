# `qkv serve` with the model that comes with qkv, for whoever has the key:
#
#     docker build -t qkv .
#     docker run --rm -p 127.0.0.1:8080:8080 -v "$PWD/key.txt:/key.txt:ro" qkv \
#       --host 0.0.0.0 --allow-host localhost --api-key-file /key.txt
FROM python:3.13-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN QKV_NEED_KERNEL=1 pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.13-slim-bookworm
COPY --from=build /wheels /wheels
RUN wheel="$(ls /wheels/qkv-*.whl)" && pip install --no-cache-dir "$wheel[serve]" && rm -rf /wheels \
  && useradd --create-home qkv
USER qkv
WORKDIR /home/qkv
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s CMD ["python", "-c", \
  "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["qkv", "serve"]
CMD ["--help"]
