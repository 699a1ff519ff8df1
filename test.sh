#!/usr/bin/env bash
# Runs every check of this repository, and stops at the first that fails.
#
#   ./test.sh                 everything
#   ./test.sh -run Invariant  options go to go test
#
# Needs Go, a C compiler for the race detector, and PostgreSQL's programs for tests
# that run a server; on Debian and Ubuntu both are installed if they are missing and
# the user may install packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

step() { printf '\n== %s\n' "$*"; }
fail() { printf '%s\n' "test.sh: $*" >&2; exit 1; }

has_compiler() {
	printf '#include <stdlib.h>\n' | $(go env CC) -x c -fsyntax-only - 2>/dev/null
}

as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

install_packages() {
	command -v apt-get >/dev/null && as_root true 2>/dev/null || return 1
	as_root apt-get update -qq &&
		as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

has_postgres() {
	compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null
}

# install_postgres installs the programs, but makes and starts no server.
install_postgres() {
	install_packages postgresql-common &&
		as_root sed -i -E 's/^#? *create_main_cluster *=.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf &&
		install_packages postgresql
}

step tools
command -v go >/dev/null || fail "Go is missing: install it from https://go.dev/dl/ (version: see go.mod)"
export CGO_ENABLED=1
# A clone that belongs to another user has no version control for git, and needs none.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-buildvcs=false"
has_compiler || install_packages gcc libc6-dev </dev/null || true
has_compiler || fail "the race detector needs a C compiler: install gcc and libc6-dev"
has_postgres || install_postgres </dev/null || true
has_postgres || fail "tests need PostgreSQL's programs: install postgresql (14 or later)"
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
