# The two commands of a newcomer are `make run` and `make test`.

.DEFAULT_GOAL := help
.PHONY: help run build install release up test nightly lint fuzz model chaos drill bench

VERSION := $(shell sed -n 's/^const version = "\(.*\)"$$/\1/p' cmd/plantstore/version.go)
COMMIT  := $(shell git describe --always --exclude='*' --abbrev=7 --dirty 2>/dev/null || echo unknown)
PROGRAM = .bin/plantstore
# Reproducible builds: the same source makes the same bytes in any folder.
BUILD   = CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.commit=$(COMMIT)" -o "$(PROGRAM)" ./cmd/plantstore
PREFIX ?= /usr/local

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# POSTGRES=17 makes every target use PostgreSQL 17: its programs are fetched once and come
# first in PATH. POSTGRES='--postgis 17' includes PostGIS.
ifdef POSTGRES
PROGRAMS := $(shell .ci/postgres-programs $(POSTGRES))
$(if $(PROGRAMS),,$(error no programs of PostgreSQL $(POSTGRES)))
export PATH := $(PROGRAMS):$(PATH)
export PLANTSTORE_TEST_POSTGRES := local
endif

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "POSTGRES=15, 17 or 18 behind a target runs it on that version, fetched from Debian."

run: ## Start the service on a private Postgres, with sample plants and a token
	@deploy/postgres/ensure.sh
	@echo "building the service: seconds, or minutes where Go has built nothing of it yet" >&2
	@$(BUILD)
	@.bin/plantstore dev

build: ## Build the program: .bin/plantstore
	$(BUILD)

install: $(PROGRAM)
install: ## Install what was built under PREFIX (/usr/local), with its systemd units; DESTDIR goes in front
	install -D -m 755 "$(PROGRAM)" "$(DESTDIR)$(PREFIX)/bin/plantstore"
	install -D -m 644 -t "$(DESTDIR)$(PREFIX)/lib/systemd/system" deploy/systemd/*
	sed -i 's|^ExecStart="/usr/local|ExecStart="$(PREFIX)|' "$(DESTDIR)$(PREFIX)/lib/systemd/system/"*.service
	install -D -m 644 deploy/postgres/roles.sql "$(DESTDIR)$(PREFIX)/share/plantstore/roles.sql"

$(PROGRAM):
	$(BUILD)

release: ## Make the archives of a release, their checksums and, with buildx, the image: .bin/release
	@.ci/release .bin/release $(VERSION) $(COMMIT) $(PLATFORMS)

up: ## Start the service and PostgreSQL in containers, see deploy/docs/install.md
	@PLANTSTORE_COMMIT=$(COMMIT) \
		$(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose) up -d --build

test: ## Run the tests on a real Postgres; TESTS says which, as in TESTS='-race -run TestRefusalsAreFinal ./internal/postgres'
	@deploy/postgres/ensure.sh pgbouncer
	@go run ./internal/pgtest/run go test -timeout 30m $(or $(TESTS),./...)

nightly: ## What takes long: every fault, the alerts in promtool, the page in a browser, generated clients, sabotage, chaos
	PLANTSTORE_TEST_EVERY_FAULT=1 $(MAKE) test TESTS='-run TestEveryConnectionFault ./internal/postgres'
	$(MAKE) test TESTS='-tags slow -run TestCheckerCatchesSabotage ./cmd/chaos'
	.ci/alerts-check
	.ci/docs-check
	.ci/clients-check
	$(MAKE) chaos DURATION=$(or $(DURATION),10m)

lint: ## Check format, vet, staticcheck and go.mod
	@test -z "$$(gofmt -l .)" || { gofmt -l . ; echo "run gofmt -w on these"; exit 1; }
	go vet -tags slow ./...
	go run $(STATICCHECK) -tags slow ./...
	go mod tidy -diff

# A number of requests, not a time: a fuzz test fails by chance when its time is
# over (https://go.dev/issue/75804).
fuzz: ## Throw 100,000 generated requests at the server, a minute or so
	go test -run '^$$' -fuzz FuzzRequest -fuzztime $(or $(REQUESTS),100000)x -fuzzminimizetime 100x ./internal/server

model: ## Look for a lie in every state that the protocol of a deletion can reach
	@cmd/chaos/model/check

chaos: ## Break everything at random for 10 minutes and check that no answer lied
	@deploy/postgres/ensure.sh
	go run ./cmd/chaos -duration $(or $(DURATION),10m)

drill: ## Fail over, migrate and upgrade a whole cluster under load; takes root and 8 minutes
	@[ "$$(id -u)" = 0 ] || { echo "the drill makes networks of its own, which takes root: run it as root" >&2; exit 1; }
	@deploy/postgres/ensure.sh
	@programs=$$(.ci/drill-programs $(or $(DEBIAN),12)) && go build -o .bin/drill ./cmd/drill && \
		exec .bin/drill -programs "$$programs" -synchronous $(or $(SYNCHRONOUS),on) $(DRILLFLAGS)

bench: ## Measure against a bare handler with wrk, about 8 minutes; prints Markdown
	@deploy/postgres/ensure.sh
	@command -v wrk >/dev/null || { [ "$$(id -u)" = 0 ] && .ci/install-packages wrk; } || { echo "no wrk on this machine: install it, as with 'sudo apt-get install wrk', and try again" >&2; exit 1; }
	go run ./cmd/bench $(BENCHFLAGS)
