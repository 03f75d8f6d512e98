# For a newcomer: `make demo` (a minute), `make quickstart` and `make test`. All set up .venv once and reuse it.
PYTHON ?= python3
OUTPUT ?= outputs/quickstart

.PHONY: help demo quickstart test lint docs clean

help:
	@echo "make demo         set up .venv, then a number and a page from embedded data within a minute"
	@echo "make quickstart   set up .venv, then pretrain, convert, fine-tune, score and report on embedded data"
	@echo "make test         set up .venv, then run the default test suite"
	@echo "make lint         ruff and mypy"
	@echo "make docs         the documentation as a static site in site/; a broken link is an error"
	@echo "make clean        remove .venv and outputs/ (the embedded data's cache is left alone)"
	@echo "PYTHON=python3.12 make quickstart   use another interpreter; OUTPUT=folder puts the report elsewhere"

demo:
	@$(PYTHON) tools/setup_env.py
	@.venv/bin/python tools/demo.py

quickstart:
	@$(PYTHON) tools/setup_env.py
	@.venv/bin/python tools/quickstart.py --output $(OUTPUT)

test:
	@$(PYTHON) tools/setup_env.py test
	@.venv/bin/python -m pytest -n 2 --dist worksteal

lint:
	@$(PYTHON) tools/setup_env.py test lint
	@.venv/bin/python -m ruff check .
	@.venv/bin/python -m ruff format --check .
	@.venv/bin/python -m mypy

docs:
	@$(PYTHON) tools/setup_env.py docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict
	@echo "wrote site/index.html"

clean:
	rm -rf .venv outputs site
