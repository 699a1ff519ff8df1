#!/usr/bin/env bash
# Runs the tests of the Sync door on every engine with every object store.
#
#   e2e/matrix.sh                     all twelve
#   e2e/matrix.sh "postgres spanner"  some engines
#   e2e/matrix.sh bigtable s3 -race   one of each; options go to go test
#
# With HOLDFAST_SYNC_SUITE=program also a functional suite: see TestFunctionalSuite.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

read -ra engines <<< "${1:-pebble postgres bigtable spanner}"
read -ra stores <<< "${2:-fs gcs s3}"
for engine in "${engines[@]}"; do
	for store in "${stores[@]}"; do
		printf '\n== %s %s\n' "$engine" "$store"
		go test ./e2e -count=1 -timeout 40m \
			-run 'Session|Objects|Refused|Browser|Tokens|Devices|Stop|Killed|FunctionalSuite' -skip OnEveryEngine \
			"${@:3}" -engine "$engine" -store "$store"
	done
done
