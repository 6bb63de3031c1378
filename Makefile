# One verb each; CI runs the same. `make help` lists them.

PYTHON := .venv/bin/python
SCRIPT := run_stepaudio2_dit_token2wav.sh
TOOLS := .cosydit/tools
FAST ?= -m "not slow and not servers"   # what `make test-fast` runs
BUILD := build==1.6.1
SBOM := cyclonedx-bom==7.5.0
AUDIT := pip-audit==2.9.0
FUZZ := atheris==3.0.0
RUNS ?= 1000000   # of each parser, for `make fuzz`
# Environments of official clients: name=packages by commas.
CLIENTS ?= openai=openai elevenlabs=elevenlabs riva=nvidia-riva-client stubs=grpcio-tools==1.64.1 \
  livekit_openai=livekit-agents,livekit-plugins-openai livekit_elevenlabs=livekit-agents,livekit-plugins-elevenlabs \
  livekit_nvidia=livekit-agents,livekit-plugins-nvidia pipecat=pipecat-ai[openai] \
  pipecat_elevenlabs=pipecat-ai[elevenlabs] pipecat_nvidia=pipecat-ai[nvidia]

comma := ,

.PHONY: help install check test test-fast test-lab test-random test-clients test-images test-tensorrt test-campaigns images build docs sbom audit fuzz clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install:  ## make .venv with everything that checks and tests need
	bash $(SCRIPT) install

check:  ## lint, unused code, types, import layers, documentation
	bash $(SCRIPT) check

test:  ## all checks and all tests, as CI runs them
	bash $(SCRIPT) test

test-fast:  ## the tests without the slow ones and without real servers
	$(PYTHON) -m pytest $(FAST)

test-lab:  ## the laboratory's types and its own tests: studies, campaigns, training, the page in a browser
	$(PYTHON) -m mypy -p lab
	$(PYTHON) -m pytest -c lab/pyproject.toml lab/tests

test-tensorrt:  ## an engine of every graph that a runner serves, by TensorRT for RTX on the CPU; takes minutes
	$(PYTHON) -m tests.token2wav_service.export.builds

test-random:  ## the same, with examples that Hypothesis draws anew
	$(PYTHON) -m pytest $(FAST) --hypothesis-profile=random

test-clients: $(foreach each,$(CLIENTS),$(TOOLS)/clients/$(firstword $(subst =, ,$(each))))  ## official clients, unmodified
	COSYDIT_CLIENTS=$(abspath $(TOOLS))/clients $(PYTHON) -m pytest -c lab/pyproject.toml -n 0 lab/conformance

test-campaigns:  ## the attack and the faults at their whole length, an hour; results in build/
	mkdir -p build
	$(PYTHON) -m lab.attack --out build/attack.json
	$(PYTHON) -m lab.faults --out build/faults.json

images:  ## the images for GPUs and the gateway's, with Docker or buildah
	deploy/docker/images.sh

test-images:  ## build three images with buildah, run them, write benchmarks/results/images_cpu.json; as root, 15 min
	COSYDIT_IMAGES=benchmarks/results/images_cpu.json $(PYTHON) -m pytest -n 0 -s -o faulthandler_timeout=7200 \
	  tests/deploy/test_built_images.py

build: $(TOOLS)/build  ## source distribution and, from it, the wheel, in dist/
	$(TOOLS)/build/bin/python -m build --outdir dist .

docs:  ## the documentation as a website, in build/docs
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --site-dir build/docs

sbom: $(TOOLS)/sbom  ## what .venv holds, as dist/sbom.cdx.json (CycloneDX)
	mkdir -p dist
	$(TOOLS)/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/sbom.cdx.json $(PYTHON)

audit: $(TOOLS)/audit  ## known weaknesses of what .venv holds; asks the databases of PyPI and OSV
	$(TOOLS)/audit/bin/pip-audit --path $$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

fuzz: $(TOOLS)/fuzz  ## every parser of bytes from outside, coverage-guided; for CPython 3.11 and up; RUNS=1000000
	PYTHONPATH=.:proto/gen:$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  $(TOOLS)/fuzz/bin/python -m tests.fuzz --runs $(RUNS)

clean:  ## remove what build, docs and sbom wrote
	rm -rf build dist $(TOOLS)

# Tools with needs of their own live apart from .venv. Args: Python, packages; what could not be installed goes.
venv = $(1) -m venv $@ && $@/bin/python -m pip install --quiet $(2) || { rm -rf $@; exit 1; }

$(TOOLS)/build:
	$(call venv,python3,$(BUILD))

$(TOOLS)/sbom:
	$(call venv,python3,$(SBOM))

$(TOOLS)/fuzz:
	$(call venv,$(PYTHON),$(FUZZ))

$(TOOLS)/clients/%:
	$(call venv,python3,$(foreach each,$(CLIENTS),$(if $(filter $*=%,$(each)),$(subst $(comma), ,$(patsubst $*=%,%,$(each))))))

$(TOOLS)/audit:
	$(call venv,python3,$(AUDIT))
