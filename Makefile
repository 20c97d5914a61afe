# Everything a newcomer needs: `make serve`, `make test`. Both make the same .venv once.
export PYTHONSAFEPATH := 1

MODEL ?= embedded
PORT ?= 8000

.PHONY: serve test check setup clean

serve: setup
	.venv/bin/bosquet serve $(MODEL) --port $(PORT)

test: setup
	scripts/check
	scripts/test

check: setup
	scripts/check

setup:
	@scripts/setup

clean:
	rm -rf .venv
