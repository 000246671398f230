# weir: `make demo` and `make test` are all a newcomer needs; the rest is below.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: build static agent proto demo test test-envoys test-agree bench lint vuln examples clean help

ENVOY_GATE := 1.40.0 1.36.4
ENVOY_ALL  := 1.40.0 1.39.3 1.38.3 1.37.0 1.36.4
GOLANGCI   := v2.12.2
GOVULN     := v1.8.0
VERSION    := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# NVIDIA's header marks what its Go binding still binds.
export CGO_CFLAGS := -g -O2 -Wno-deprecated-declarations
GOFLAGS_   := -trimpath -ldflags '-s -w -X main.version=$(VERSION)'

.DEFAULT_GOAL := help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

build: ## bin/weir, a static binary
	@echo "building bin/weir ..."
	@CGO_ENABLED=0 go build $(GOFLAGS_) -o bin/weir ./cmd/weir

static: build ## bin/weir needs no library of the machine
	@go version -m bin/weir | grep -q CGO_ENABLED=0 && ! grep -aq ld-linux-x86-64 bin/weir || { echo "bin/weir is not static"; exit 1; }
	@echo "bin/weir is static, $$(du -h bin/weir | cut -f1)"

agent: ## bin/weir-gpu-agent, for GPU nodes; needs glibc, and finds DCGM or NVML when it runs
	@build/cc && echo "building bin/weir-gpu-agent ..." && CGO_ENABLED=1 go build $(GOFLAGS_) -o bin/weir-gpu-agent ./cmd/weir-gpu-agent

proto: ## the Go code of proto/, after a change there
	@build/proto

demo: build ## Envoy, weir and a simulated model pool under a burst of four times the capacity
	@envoy=$$(build/envoy 1.40.0) && exec ./bin/weir demo --envoy "$$envoy"

test: ## the gate: every test with -race, real Redis and etcd, Envoy 1.40.0 and 1.36.4
	@build/cc && envoys="$$(build/envoy $(ENVOY_GATE) | tr '\n' ' ')" && redis="$$(build/redis)" && etcd="$$(build/etcd)" && openai="$$(build/openai)" && \
	go vet ./... && \
	export WEIR_ENVOYS="$$envoys" REDIS_SERVER="$$redis" ETCD_SERVER="$$etcd" OPENAI_PATH="$$openai" && \
	go test -race -timeout 18m $$(go list ./... | grep -v /examples) && \
	go test -race -timeout 18m -count=1 ./examples/...  # they run the built weir, which the test cache does not see

test-envoys: ## the tests through a real Envoy, on all five releases
	@build/cc && envoys="$$(build/envoy $(ENVOY_ALL) | tr '\n' ' ')" && redis="$$(build/redis)" && openai="$$(build/openai)" && \
	WEIR_ENVOYS="$$envoys" REDIS_SERVER="$$redis" OPENAI_PATH="$$openai" go test -race -timeout 60m -count=1 ./examples/...

test-agree: ## the simulator against a real Envoy and weir: 3 runs in 2 min; wants a quiet machine
	@envoy="$$(build/envoy 1.40.0)" && \
	WEIR_AGREE=1 WEIR_ENVOYS="$$envoy" go test -timeout 10m -count=1 -v -run '^TestVirtualAndRealAgree$$' ./examples

bench: ## Go benchmarks, then the end-to-end ratios in bench/results.json
	@set -o pipefail; go test -run '^$$' -bench . -benchmem -benchtime 200ms -p 1 ./... | grep -v 'no test files' | tee bench/out.txt
	@REDIS_SERVER="$$(build/redis)" go run ./bench -out bench/results.json

lint: ## gofmt, vet, golangci-lint
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not formatted:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	@go vet ./...
	@test -x .tools/golangci-lint-$(GOLANGCI) || { echo "building golangci-lint $(GOLANGCI) (some minutes, once) ..."; \
	  GOBIN=$$PWD/.tools go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI) && \
	  mv .tools/golangci-lint .tools/golangci-lint-$(GOLANGCI); }
	@GOLANGCI_LINT_CACHE=$$PWD/.tools/lint-cache .tools/golangci-lint-$(GOLANGCI) run  # a cache shared by trees names files of the other tree

vuln: ## known vulnerabilities in what we call
	@build/vuln $(GOVULN)

examples: build ## every policy and Envoy file of examples/ is loaded and checked
	@for f in examples/policies/*.yaml; do echo "weir check $$f"; ./bin/weir check "$$f" >/dev/null || exit 1; done
	@for f in examples/envoy/*.yaml; do n=$${f##*/}; p=examples/policies/$$n; [ "$$n" != two-filters.yaml ] || p=examples/policies/default.yaml; \
	  [ -f "$$p" ] || p=; echo "weir envoy check $$f$${p:+ --config $$p}"; ./bin/weir envoy check "$$f" $${p:+--config "$$p"} || exit 1; done
	@go test ./examples/... -run 'Static' -count=1

clean: ## what was built; not .tools
	@rm -rf bin
