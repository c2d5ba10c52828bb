# Every target does its own set-up, into .venv; done again only when pyproject.toml changes.
# PYTHON=python3.12 chooses the interpreter, WORKERS=4 the test processes, ARGS='-k guard' goes to pytest.
# VERSIONS='15 ./pg17/bin' are the PostgreSQLs of matrix-postgres: of Debian's packages, or in a folder of their programs.

PYTHON ?=
WORKERS ?= 2
ROWS ?= 5000000
DELTAS ?= 2000
SEED ?= 1
ARGS ?=
RUN = .venv/bin/python

.PHONY: help demo test test-all matrix matrix-postgres matrix-celery matrix-oldest-celery bigtable fire serve lint format mutants clean

help:
	@echo "make demo     a sleeping worker is overtaken, woken up, and refused by PostgreSQL"
	@echo "make test     the test suite on real servers"
	@echo "make test-all the same with failovers, clusters and broken networks: some two minutes more"
	@echo "make matrix   all of the following, which CI runs a part of"
	@echo "make matrix-postgres  the tests of guard, writes, leases and transactions on each PostgreSQL of Debian's packages, 15 to 18,"
	@echo "              or on those of VERSIONS='15 ./pg17/bin', where a path is the folder of a server's programs"
	@echo "make matrix-celery    the Celery tasks in every pool (prefork, threads, gevent, solo) on Valkey and on RabbitMQ"
	@echo "make matrix-oldest-celery  all tests of Celery tasks on Celery 5.5.0, in an environment of its own: ten minutes"
	@echo "make bigtable fence a table of ROWS rows (5000000) while it is in use, on each database, and print who waited how long"
	@echo "make fire     DELTAS deltas of stocks (2000) while their workers are paused, killed and restarted, by SEED (1)"
	@echo "make serve    the example project in the browser"
	@echo "make lint     style, types, import layers, missing migrations"
	@echo "make format   apply the formatter"
	@echo "make mutants  remove each protection in turn and see the tests notice"
	@echo "make clean    remove the environment, the servers' data and all caches"

demo: .venv/ready
	@$(RUN) manage.py demo

test: .venv/ready
	@$(RUN) -m pytest -n $(WORKERS) -m "not heavy and not product" $(ARGS)

test-all: .venv/ready
	@$(RUN) -m pytest -n $(WORKERS) -m "not product" $(ARGS)

matrix: matrix-postgres matrix-celery matrix-oldest-celery

matrix-postgres: .venv/ready
	@$(RUN) -m tests.debian_postgres $(VERSIONS)

matrix-celery: .venv/ready
	@$(RUN) -m pytest -n $(WORKERS) tests/celery/test_rows.py $(ARGS)

matrix-oldest-celery: .venv/oldest-celery/ready
	@.venv/oldest-celery/bin/python -m pytest -n $(WORKERS) tests/celery $(ARGS)

bigtable: .venv/ready
	@FENCING_TEST_ROWS=$(ROWS) $(RUN) -m pytest -s tests/guards/test_busy_tables.py \
	  -k "hardly_wait or no_statement_reads or all_of_it" $(ARGS)

fire: .venv/ready
	@FENCING_TEST_DELTAS=$(DELTAS) FENCING_TEST_SEED=$(SEED) $(RUN) -m pytest -s tests/celery/test_fire.py $(ARGS)

serve: .venv/ready
	@$(RUN) manage.py serve

lint: .venv/ready
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@.venv/bin/lint-imports --no-logo
	@$(RUN) manage.py makemigrations --check --dry-run
	@$(RUN) manage.py check

format: .venv/ready
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

mutants: .venv/ready
	@$(RUN) -m tests.mutants

clean:
	@if [ -x $(RUN) ]; then $(RUN) -m inventory_demo.servers clean; fi
	@rm -rf .venv .servers build dist .nox .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first interpreter that is new enough and can make environments; a version manager's stand-ins may do neither.
.venv/ready: pyproject.toml
	@set -e; \
	if ! $(RUN) -c '' 2>/dev/null; then \
	  for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	    if "$$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	      echo "Making .venv with $$python ..."; "$$python" -m venv --clear .venv; break; \
	    fi; \
	  done; \
	  if ! $(RUN) -c '' 2>/dev/null; then \
	    echo "Python 3.11 or newer with its venv module is needed; name one: make PYTHON=/path/to/python3" >&2; exit 1; \
	  fi; \
	fi; \
	echo "Installing what the project needs into .venv ..."; \
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[test]'; \
	touch .venv/ready

# Inside of .venv, so that whatever leaves that alone or removes it does so with this one, too.
.venv/oldest-celery/ready: .venv/ready
	@$(RUN) -m venv --clear .venv/oldest-celery
	@echo "Installing the same with Celery 5.5.0 into .venv/oldest-celery ..."
	@.venv/oldest-celery/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[test]' \
	  'celery[redis]==5.5.0' 'redis<=5.2.1'
	@touch $@
