# Targets with a comment behind ## are listed by `make` alone.

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
LDFLAGS   = -s -w -X main.version=$(VERSION) -X main.revision=$(REVISION)

# Fetched servers and tools are kept here; test/child decides the same.
CACHE := $(if $(OUTBOXCDC_CACHE),$(OUTBOXCDC_CACHE),$(if $(TMPDIR),$(TMPDIR:/=),/tmp)/outboxcdc-cache-$(shell id -u))

LINT_VERSION  := v2.15.0
# A linter cannot read code for a newer Go than it was built with, so Go's version is part of the name.
LINT_DIR       = $(CACHE)/golangci-lint-$(LINT_VERSION)-$(shell $(GO) env GOVERSION)
GOLANGCI_LINT ?= $(LINT_DIR)/golangci-lint
VALE_VERSION  := v3.22.0
VALE          ?= $(CACHE)/vale-$(VALE_VERSION)/vale

# Two at a time, whatever the machine: they start servers.
P := 2
HAVE_CC    = $(shell test "$$($(GO) env CGO_ENABLED)" = 1 && command -v "$$($(GO) env CC)" >/dev/null && echo yes)
FUZZTIME  ?= 20s
# Modules other than the product's (docs/adr/0025-modules-for-applications.md).
MODULES   := inbox inbox/riverinbox outbox outbox/registry samples/tasks test/compose test/ends test/helm

.PHONY: help
help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/outboxcdc, one static binary
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(LDFLAGS)" -o bin/outboxcdc ./cmd/outboxcdc

.PHONY: bin/testrun
bin/testrun:
	@CGO_ENABLED=0 $(GO) build -o $@ ./test/testrun

# first-run prints a hint if Go has to compile the standard library or a dependency, or if a server has to be fetched. `go list` reads Go's
# caches and downloads nothing; -trimpath is the daemon's build. grep without -q reads to the end, or pipefail would see SIGPIPE.
STALE = {{if .Stale}}{{if not .Module}}{{.ImportPath}}{{else if not .Module.Main}}{{.ImportPath}}{{end}}{{end}}
.PHONY: first-run
first-run:
	@compgen -G "$(CACHE)/postgres-18*" >/dev/null && ! { GOPROXY=off CGO_ENABLED=0 $(GO) list -deps -trimpath -f '$(STALE)' ./cmd/outboxcdc; \
	  GOPROXY=off $(GO) list -deps -f '$(STALE)' ./...; :; } 2>&1 | grep . >/dev/null || \
	echo "The first run compiles everything, which is silent for some minutes and fills Go's own caches with up to 2 GB." \
	  "Servers are fetched into $(CACHE): PostgreSQL 18 for the demo (60 MB), PostgreSQL 14 to 18, Prometheus, and Kafka where Java is, for the tests (500 MB)."

# What each of these runs is in test/testrun/plan.go; test/testrun/tiers.txt says which tests `make test` leaves to `make test-rest`.
.PHONY: test test-rest test-all
test: first-run bin/testrun ## a test of each promise and each fault, on real servers (6 minutes on 2 cores)
	@bin/testrun -kafka test

test-rest: first-run bin/testrun ## what `make test` leaves out: longer tests, other versions of Postgres, the model, the chart
	@bin/testrun -kafka rest

test-all: first-run bin/testrun ## everything of both
	@bin/testrun -kafka all

.PHONY: unit
unit: bin/testrun ## the tests that need no server
	@bin/testrun unit

.PHONY: race
race: bin/testrun ## the packages with goroutines under the race detector
	@test -n "$(HAVE_CC)" || { echo "the race detector needs a C compiler (apt-get install gcc libc6-dev)"; exit 1; }
	@bin/testrun race

.PHONY: integration
integration: bin/testrun ## the built binary on real Postgres and Kafka (RUN=regexp chooses tests)
	@bin/testrun -kafka -run '$(RUN)' integration

.PHONY: samples
samples: build ## the programs of samples/ on real servers (RUN=regexp: these languages, KILLS=1: kill producer and consumer, as make prove does)
	@CGO_ENABLED=0 $(GO) build -o bin/samples ./test/samples
	@exec bin/samples -binary bin/outboxcdc -p $(P) $(if $(RUN),-run '$(RUN)') $(if $(KILLS),-kills)

.PHONY: sim
sim: bin/testrun ## the simulator alone (SIM=10m or a number of seeds; SEED=n repeats one)
	@OUTBOXCDC_TEST_SIM='$(or $(SIM),1m)' OUTBOXCDC_TEST_SEED='$(SEED)' $(GO) test -json -count=1 -timeout 24h -run '^TestSim' ./relay | bin/testrun

.PHONY: mutants
mutants: ## the product with one rule wrong at a time: a test must notice (RUN=regexp chooses mutants; 12 minutes)
	@$(GO) run ./test/mutants $(if $(RUN),-run '$(RUN)')

.PHONY: model model-large
model: ## deduplicated delivery as a Promela model, every history (spin, gcc; a minute; RUN=regexp: these, with the histories that break a mutant)
	@command -v spin >/dev/null && command -v gcc >/dev/null || { echo "the model needs spin and a C compiler (apt-get install spin gcc libc6-dev)"; exit 1; }
	@$(GO) test -count=1 -parallel $(P) -timeout $(or $(MODEL_TIMEOUT),10m) -v ./test/model $(if $(RUN),-run '$(RUN)' -history) $(MODEL_ARGS) | grep -v '^=== '

model-large: ## the same with larger bounds (minutes, 2 GB)
	@$(MAKE) --no-print-directory model MODEL_ARGS="-large$(if $(RUN),, -run TestRules)" MODEL_TIMEOUT=2h

.PHONY: prove
prove: bin/testrun ## every fault in full length, simulator and mutants; writes docs/proof.md (two hours on 2 cores; RUN=regexp: only these tests, AGAIN=1: go on with the last whole run, or with RUN, into it, SHORT=1: as in make test, PAGE=1: only the page again; SINK=rabbitmq: the tests that docs/sinks.md names for this sink, writes nothing)
	@exec bin/testrun prove $(if $(PAGE),-page) $(if $(RUN),-run '$(RUN)') $(if $(AGAIN),-again) $(if $(SHORT),-short) $(if $(SEED),-seed '$(SEED)') $(if $(SINK),-sink '$(SINK)')

.PHONY: golden
golden: export OUTBOXCDC_TEST_DEBEZIUM_VERSION = $(or $(DEBEZIUM),3.7.0.Final)
golden: export OUTBOXCDC_TEST_KAFKA_VERSION = $(or $(KAFKA),4.4.0)
golden: ## a real Debezium: record what it makes of the cases of test/golden, and take its slot over (Java, Maven; six minutes; DEBEZIUM=3.6.1.Final KAFKA=4.3.1: other versions, RUN=regexp: record these only)
	$(GO) run ./test/golden/record $(if $(RUN),-run '$(RUN)')
	$(if $(RUN),,OUTBOXCDC_GOLDEN=1 CI=true $(GO) test -v -count=1 -timeout 9m -run '^(TestTakeOverFromDebezium|TestThereAndBack)$$' ./test/integration)

.PHONY: bench
bench: build ## the built binary next to yardsticks, on servers of its own (WHAT="drain steady memory", ARGS="-rounds 3 -scale 1 …", OUT=file; BENCH_DEBEZIUM=1)
	@CGO_ENABLED=0 $(GO) build -o bin/bench ./test/bench
	@exec bin/bench -binary bin/outboxcdc -o '$(or $(OUT),bin/bench.jsonl)' $(ARGS) $(or $(WHAT),drain)

.PHONY: failover
failover: build ## switchovers and kills of the primary with Patroni, etcd and two servers, on PostgreSQL 17 and 18 (Python with pip, etcd or apt-get; half an hour; N=3: fewer, ARGS="-postgres 18 -kafka real -scenarios lossy")
	@CGO_ENABLED=0 $(GO) build -o bin/failover ./test/failover
	@exec bin/failover -binary bin/outboxcdc $(if $(N),-n '$(N)') $(ARGS)

.PHONY: history
history: bin/testrun ## judge stored histories again (FILE=file or folder; default: those of the last `make prove`)
	@OUTBOXCDC_TEST_HISTORY='$(abspath $(or $(FILE),bin/proof/history))' OUTBOXCDC_TEST_FAKE_KAFKA=1 CI= $(GO) test -json -count=1 -run '^TestStoredHistory$$' ./test/integration | bin/testrun

# The last stage of Dockerfile, on a binary that is built here: no base image has to be fetched. BUILDAH keeps what it needs in bin/.
CA_CERTIFICATES ?= /etc/ssl/certs/ca-certificates.crt
IMAGE_DIR        = bin/image
IMAGE            = docker.io/library/outboxcdc:$(VERSION)
BUILDAH          = buildah --root $(CURDIR)/$(IMAGE_DIR)/storage --runroot $(CURDIR)/$(IMAGE_DIR)/run --storage-driver vfs

.PHONY: image
image: build ## bin/outboxcdc-image.tar, the container image for docker load or skopeo, without a Docker daemon (apt-get install buildah)
	@command -v buildah >/dev/null || { echo "make image needs buildah (apt-get install buildah); with Docker: docker build -t outboxcdc ."; exit 1; }
	@rm -rf $(IMAGE_DIR) bin/outboxcdc-image.tar
	@mkdir -p $(IMAGE_DIR)/build/out $(IMAGE_DIR)/build/etc/ssl/certs
	@cp bin/outboxcdc $(IMAGE_DIR)/build/out/outboxcdc
	@cp $(CA_CERTIFICATES) $(IMAGE_DIR)/build/etc/ssl/certs/ca-certificates.crt
	$(BUILDAH) build --quiet --isolation chroot --platform linux/$(shell $(GO) env GOARCH) --build-context build=$(IMAGE_DIR)/build \
		--build-arg VERSION='$(VERSION)' --build-arg REVISION='$(REVISION)' --tag '$(IMAGE)' .
	$(BUILDAH) push --quiet '$(IMAGE)' docker-archive:bin/outboxcdc-image.tar
	@rm -rf $(IMAGE_DIR)

.PHONY: image-test
image-test: bin/testrun image ## build the image, look at what is in it, and run it without a container: as its user, with its files alone (root)
	@OUTBOXCDC_TEST_IMAGE='$(CURDIR)/bin/outboxcdc-image.tar' $(GO) test -json -count=1 ./test/image | bin/testrun

.PHONY: compose-test
compose-test: bin/testrun ## docker-compose.yml as docker compose would read it; needs no Docker
	@bin/testrun compose

.PHONY: ends
ends: bin/testrun ## the modules for applications, alone, and between real servers and the built daemon (RUN=regexp chooses tests; OUTBOXCDC_PROVE=1: in full length)
	@bin/testrun -run '$(RUN)' ends

.PHONY: effect
effect: bin/testrun ## an effect happens once: a shop, the daemon, a real Kafka and a ledger, killed 240 times in each delivery mode, and what sends events again (15 minutes)
	@(cd test/ends && OUTBOXCDC_PROVE=1 CI=true GOWORK=off $(GO) test -json -count=1 -timeout 90m ./effect) | bin/testrun

.PHONY: helm-test
helm-test: bin/testrun ## the chart as helm would render and lint it; needs neither Helm nor a cluster
	@bin/testrun helm

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (20s)
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort -u | \
	while IFS=: read -r file name; do \
		dir=$${file%/*} name=$${name#func }; \
		echo "== $$dir $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$dir" </dev/null; \
	done

.PHONY: lint
lint: $(GOLANGCI_LINT) $(VALE) ## golangci-lint and the language check; both are built into the cache the first time (about three minutes)
	CGO_ENABLED=0 $(GOLANGCI_LINT) run ./...
	$(VALE) .
	for m in $(MODULES); do (cd $$m && GOWORK=off CGO_ENABLED=0 $(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yml ./...); done

.PHONY: prose
prose: $(VALE) ## the language check alone (RUN=path: this file or folder)
	@$(VALE) $(if $(RUN),$(if $(filter /%,$(RUN)),$(RUN),./$(RUN)),.)

.PHONY: docs
docs: ## write docs/commands.md and the manual page again, from the commands, and the chart's copy of the alerts
	$(GO) test -count=1 -run '^TestCommandsAreDocumented$$' ./cmd/outboxcdc -update-commands
	@[ ! -e deploy/prometheus/alerts.yaml ] || cp deploy/prometheus/alerts.yaml deploy/helm/outboxcdc/files/alerts.yaml

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## format the code as lint wants it
	$(GOLANGCI_LINT) fmt ./...
	for m in $(MODULES); do (cd $$m && GOWORK=off $(GOLANGCI_LINT) fmt --config $(CURDIR)/.golangci.yml ./...); done

# go install prints a package a line; every hundredth shows that it goes on, and every complaint is passed on. A tool that is half
# built has another name, so that it is not taken for a whole one. $(call go-install,package@version,cgo)
define go-install
	@mkdir -p $(dir $@)
	@echo "building $(1) (a minute or two, once)"
	@stage=$$(mktemp -d "$(dir $@)stage.XXXXXX"); trap 'rm -rf "$$stage"' EXIT; \
	GOBIN="$$stage" GOFLAGS= CGO_ENABLED=$(2) $(GO) install -v $(1) 2>&1 | \
		awk '/[ :]/ { print; fflush(); next } NR % 100 == 0 { print "  … " NR " packages"; fflush() }'; \
	mv "$$stage/$(notdir $@)" $@
endef

$(LINT_DIR)/golangci-lint:
	$(call go-install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION),0)

# It parses Go with a library in C.
$(CACHE)/vale-$(VALE_VERSION)/vale:
	@command -v "$$($(GO) env CC)" >/dev/null || { echo "make lint builds vale, which needs a C compiler (apt-get install gcc libc6-dev)"; exit 1; }
	$(call go-install,github.com/vale-cli/vale/v3/cmd/vale@$(VALE_VERSION),1)

.PHONY: tidy-check
tidy-check: ## go.mod and go.sum say what the code needs
	$(GO) mod tidy -diff
	for m in $(MODULES); do (cd $$m && GOWORK=off $(GO) mod tidy -diff); done

.PHONY: demo
demo: first-run build ## the whole chain on this machine, with faults (KEEP=1: until Ctrl-C; KAFKA=real: a real Kafka; SINK=rabbitmq, redis, nats or http: deliver to that)
	@CGO_ENABLED=0 $(GO) build -o bin/demo ./test/demo
	@$(if $(filter-out kafka,$(SINK)),:,cd test/ends && GOWORK=off CGO_ENABLED=0 $(GO) build -o ../../bin/ledger ./ledger)
	@KEEP='$(KEEP)' KAFKA='$(KAFKA)' SINK='$(SINK)' exec bin/demo -binary bin/outboxcdc -ledger bin/ledger

.PHONY: up
up: ## docker compose: Postgres, Kafka, outboxcdc, a writer and a printing consumer (MONITORING=1: Prometheus and Grafana too)
	VERSION='$(VERSION)' REVISION='$(REVISION)' docker compose $(if $(MONITORING),--profile monitoring) up --build --detach
	docker compose logs --follow consumer

.PHONY: down
down: ## remove what `make up` made, with its data
	docker compose --profile monitoring down --volumes --remove-orphans

.PHONY: clean
clean: ## remove built files; the cache of fetched servers stays
	rm -rf bin dist
