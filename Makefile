# Every target builds on `setup`; nothing here needs more than Python 3.11 and, for real servers,
# root on Debian (elsewhere tests/stack names what is missing).
PYTHON ?= python3
PY := .venv/bin/python
export PYTHONPATH := operator:tests
# Tests start Python some hundred times; without bytecode on disk each start compiles anew.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
# What the tests use; a second store can be added: SERVERS="rabbitmq cassandra s3 minio kubernetes"
SERVERS := rabbitmq cassandra s3 kubernetes
TOOLS := helm kubeconform
empty :=
comma := ,

.PHONY: help setup machine lock manifests api-reference check test test-cluster test-matrix test-peers test-machine test-gitops test-james test-release test-kind unit demo demo-small docs release plugin bench chaos kills mutants clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]*:.*## / {printf "%-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: machine .venv/ready ## prepare .venv from the lock

machine:
	@sh tests/check-machine.sh $(MAKECMDGOALS)

.venv/ready: locks/dev.txt pyproject.toml
	@sh tests/prepare-python.sh $(PYTHON)
	@touch $@

lock: setup ## resolve the dependencies anew
	$(PY) -m pip install -q uv
	$(PY) -m uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --extra operator --extra intake --extra console --extra pipeline --extra tracing --extra dev -o locks/dev.txt pyproject.toml
	$(PY) -m uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --extra operator --extra intake --extra console --extra tracing -c locks/dev.txt -o locks/run.txt pyproject.toml
	printf 'matplotlib>=3.10\npandas>=2.2,<3\npyarrow>=18\npyspark>=3.5.9,<3.6\n' | $(PY) -m uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -c locks/dev.txt -o locks/pipeline.txt -
	printf 'mike>=2.1\nmkdocs-click>=0.9\nmkdocs-material>=9.6\nmkdocstrings[python]>=0.30\n' | $(PY) -m uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -c locks/dev.txt -o locks/docs.txt -
	printf 'hatchling\nsetuptools\nwheel\n' | $(PY) -m uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -c locks/dev.txt -o locks/build.txt -
	printf 'spdx-tools\n' | $(PY) -m uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -o locks/spdx.txt -
	printf 'dramatiq[redis]\nhuey\nprocrastinate\n' | $(PY) -m uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -o locks/peers.txt -

manifests: setup ## render manifests/ from the chart, copy the CRDs into it
	cd tests && ../$(PY) -m support.chart

api-reference: setup ## write docs/operator/api-reference.md from the CRDs, openapi.json of the intake
	$(PY) -m support.api_reference
	$(PY) -m support.http_openapi

# Libraries of their own lock, which only this target installs, beside those of the tests.
.venv/docs-ready: .venv/ready locks/docs.txt
	$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r locks/docs.txt
	@touch $@

docs: setup .venv/docs-ready ## the documents as a site in build/site, without a warning or not at all; with VERSION=1.2 also a commit of the branch gh-pages
ifdef VERSION
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/.venv/bin:$$PATH" mike deploy --update-aliases "$$VERSION" latest
	.venv/bin/mike set-default latest
else
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build -q
endif

check: setup ## format, lint, types, import contracts, dead code
	@test ! -e operator/__init__.py || { echo "operator/__init__.py would shadow the standard library's operator: remove it"; exit 1; }
	$(PY) -m ruff format --check operator tests
	$(PY) -m ruff check operator tests
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) -m vulture operator
	$(PY) -m vulture operator tests

# A file system in memory with room for the files of `make unit`, where there is one.
MEMORY = $(shell df -k --output=avail /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 2000000 {print "/dev/shm"}')
unit: setup ## the tests that need no server
	files="$$(mktemp -d -p "$(or $(MEMORY),$${TMPDIR:-/tmp})")"; trap 'rm -rf "$$files"' EXIT INT TERM; \
	$(PY) -m pytest -n 2 --basetemp="$$files" tests/unit tests/contract operator

test: setup ## every test, on real servers (TESTS=path to choose)
	cd tests && $(PYTHON) -m stack up $(SERVERS) $(TOOLS)
	variables="$$(cd tests && $(PYTHON) -m stack env)" || exit 1; eval "$$variables"; \
	export POSTROAD_REQUIRE="$${POSTROAD_REQUIRE-$(subst $(empty) $(empty),$(comma),$(SERVERS) $(TOOLS) strace promtool)}"; \
	$(if $(TESTS),$(PY) -m pytest $(TESTS),sh tests/run-all.sh $(PY))

test-cluster: setup ## tests on a cluster of their own: faults, nodes that come and go (minutes)
	POSTROAD_TEST_CLUSTER="$${POSTROAD_TEST_CLUSTER-own}" POSTROAD_REQUIRE=cluster $(PY) -m pytest $(or $(TESTS),tests/integration/cluster)

test-peers: setup ## mail through Postfix, Exim, OpenSMTPD, Dovecot, Haraka, maddy, James, milters and clients, in and out
	POSTROAD_TEST_PEERS=yes $(PY) -m pytest $(or $(TESTS),tests/peers)

test-gitops: setup ## Flux, Argo CD, metrics-server, and two releases of the chart on the local stack (built by Go: a quarter of an hour, once)
	cd tests && $(PYTHON) -m stack up $(SERVERS) helm
	variables="$$(cd tests && $(PYTHON) -m stack env)" || exit 1; eval "$$variables"; \
	POSTROAD_TEST_GITOPS=yes POSTROAD_REQUIRE=$(subst $(empty) $(empty),$(comma),gitops git helm $(SERVERS)) $(PY) -m pytest $(or $(TESTS),tests/e2e/test_flux.py tests/e2e/test_health_of_resources.py tests/e2e/test_rollback.py tests/e2e/test_metrics_server.py)

test-james: setup ## queues that James' own jars fill, moved by `postroad migrate james` (needs Maven; a quarter of an hour)
	cd tests && $(PYTHON) -m stack up rabbitmq cassandra s3
	variables="$$(cd tests && $(PYTHON) -m stack env)" || exit 1; eval "$$variables"; \
	POSTROAD_TEST_JAMES=yes POSTROAD_REQUIRE=james,rabbitmq,cassandra,s3,java,mvn $(PY) -m pytest $(or $(TESTS),tests/integration/test_james_migration.py)

test-release: setup ## a whole release twice: digests, cosign, and syft beside the bill of materials (built by Go: half an hour, once)
	POSTROAD_TEST_RELEASE=yes POSTROAD_REQUIRE=release,buildah $(PY) -m pytest $(or $(TESTS),tests/release)

test-kind: setup ## the demo and the e2e tests over Docker and kind (an engine is started where none answers; TESTS=path)
	export POSTROAD_STACK_DIR="$${POSTROAD_STACK_DIR:-$${XDG_STATE_HOME:-$$HOME/.local/state}/postroad/kind}"; \
	cd tests && TESTS="$(TESTS)" ../$(PY) -m stack engine run sh run-kind.sh $(PY)

MACHINE = --cuts $(or $(CUTS),50) --minutes $(or $(MINUTES),30) --undone $(or $(UNDONE),nothing)
test-machine: setup ## a machine of its own: power cuts, then first commands on a fresh Debian 12 (CUTS=50 MINUTES=30 UNDONE=spool|log)
	cd tests && ../$(PY) -m machine $(MACHINE)
	cd tests && ../$(PY) -m machine $(MACHINE) --drops
	cd tests && ../$(PY) -m machine.fresh

# What users name reaches the shell as variables of its environment, so that no character of it means
# more than itself.
demo-small: setup ## the embedded queue in a directory, without servers: in, held, killed, delivered
	$(PY) -m demo.small $${MAIL:+--mail "$$MAIL"}

demo: setup ## from kubectl apply to delivered mail (MAIL=dir for mails of your own; CLUSTER=current IMAGE= NAMESPACE= CONFIRM= for a cluster of your own)
	$(PY) -m demo $${MAIL:+--mail "$$MAIL"} --cluster "$${CLUSTER:-local}" --namespace "$${NAMESPACE:-postroad-demo}" --image "$$IMAGE" --confirm "$$CONFIRM"

test-matrix: setup ## other versions of the servers, and TLS: the contract suites, and the operator on Kubernetes 1.31 to 1.35 (LEGS="rabbitmq4.3 tls kubernetes1.31")
	$(PY) -m matrix $(LEGS)

release: setup ## wheel, chart, manifests, SBOM, provenance, checksums and signatures in dist/VERSION (VERSION=1.2.3 KEY=key.pem; BASE=image@digest has buildah build the image)
	$(PY) -m release "$$VERSION" --key "$$KEY" --base "$$BASE"

plugin: setup ## kubectl-mailqueue as one file, and its manifest for Krew, in dist/plugin (PLACE=https://… where it is published)
	$(PY) -m release.plugin dist/plugin $${PLACE:+"$$PLACE"}

bench: setup ## measure side by side with a peer, or with what was calculated (ROOM=queue, mta, delivery, scheduler, broker, operator, pipeline, library, console)
	$(PY) -m bench $(ROOM)

# One run by default; see docs/chaos.md for what else can be said.
BACKEND ?= memory
SEED ?= 1
SEEDS ?= 1
SECONDS ?= $(if $(filter memory,$(BACKEND)),3600,300)
MINUTES ?= 0
chaos: setup ## look for lost, returned and repeated mail under drawn faults (BACKEND= SEED= SEEDS= SECONDS= FAULTS= SHRINK= BITE=)
	$(if $(filter single intake,$(BACKEND)),cd tests && $(PYTHON) -m stack up rabbitmq cassandra s3)
	eval "$$(cd tests && $(PYTHON) -m stack env)"; \
	$(PY) -m chaos $(if $(BITE),bite $(filter-out all,$(BITE)),run --backend $(BACKEND) --seed $(SEED) --seeds $(SEEDS) --seconds $(SECONDS) --minutes $(MINUTES) --faults '$(FAULTS)' $(if $(MAILS),--mails $(MAILS)) $(if $(SHRINK),--shrink $(SHRINK)))

kills: setup ## kill a worker at random amid mail for many sites (BACKEND=embedded, single, intake; KILLS= MAILS= SITES= SEED= BITE=)
	$(if $(filter single intake,$(BACKEND)),cd tests && $(PYTHON) -m stack up rabbitmq cassandra s3)
	$(if $(filter single intake,$(BACKEND)),eval "$$(cd tests && $(PYTHON) -m stack env)";) \
	$(PY) -m kills --backend $(or $(filter-out memory,$(BACKEND)),embedded) --seed $(SEED) $(if $(KILLS),--kills $(KILLS)) $(if $(MAILS),--mails $(MAILS)) $(if $(SITES),--sites $(SITES)) $(if $(BITE),--bite $(BITE))

mutants: setup ## put faults into a room's code, one at a time, and list those that no test notices (ROOM= COUNT= SEED=)
	$(if $(filter adapters,$(ROOM)),cd tests && $(PYTHON) -m stack up rabbitmq cassandra s3)
	$(if $(filter adapters,$(ROOM)),eval "$$(cd tests && $(PYTHON) -m stack env)";) \
	$(PY) -m mutants $(or $(ROOM),domain) --count $(or $(COUNT),60) --seed $(SEED) $(if $(MOST),--most $(MOST)) $(if $(AT),--at $(AT)) $(if $(TESTS),--tests $(TESTS))

clean: ## stop the local stack and remove what was built here
	-cd tests && $(PYTHON) -m stack down
	rm -rf build .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find operator tests -name __pycache__ -type d -prune -exec rm -rf {} +
