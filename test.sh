#!/usr/bin/env bash
# Runs every check of this repository, and stops at the first that fails.
#
#   ./test.sh                 everything
#   ./test.sh -run Invariant  options go to go test
#
# Needs Go. The race detector needs a C compiler too; on Debian and Ubuntu it is
# installed if it is missing and the user may install packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

step() { printf '\n== %s\n' "$*"; }
fail() { printf '%s\n' "test.sh: $*" >&2; exit 1; }

has_compiler() {
	printf '#include <stdlib.h>\n' | $(go env CC) -x c -fsyntax-only - 2>/dev/null
}

install_compiler() {
	local root=()
	if [ "$(id -u)" -ne 0 ]; then
		sudo -n true 2>/dev/null || return 1
		root=(sudo -n)
	fi
	command -v apt-get >/dev/null || return 1
	${root[@]+"${root[@]}"} apt-get update -qq &&
		${root[@]+"${root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev
}

step tools
command -v go >/dev/null || fail "Go is missing: install it from https://go.dev/dl/ (version: see go.mod)"
export CGO_ENABLED=1
# A clone that belongs to another user has no version control for git, and needs none.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-buildvcs=false"
has_compiler || install_compiler </dev/null || true
has_compiler || fail "the race detector needs a C compiler: install gcc and libc6-dev"
go version

step gofmt
unformatted=$("$(go env GOROOT)/bin/gofmt" -l .)
[ -z "$unformatted" ] || fail "not formatted, run gofmt -w on:
$unformatted"

step go vet
go vet ./...

step staticcheck
go tool staticcheck ./...

step go test -race
go test -race -timeout 15m "$@" ./...

step passed
