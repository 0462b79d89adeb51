#!/bin/sh
# Makes sure that this machine has PostgreSQL's server programs and, with the argument
# pgbouncer, PgBouncer, which some tests need. If they are missing, it says so and installs
# them as root with apt. Otherwise, or if PLANTSTORE_NO_INSTALL is set, it says what to do.
set -eu

# missing NAME PACKAGE BREW TARGET installs a package, or says how.
missing() {
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ -z "${PLANTSTORE_NO_INSTALL:-}" ]; then
		echo "no $1 on this machine: apt-get now installs Debian's package '$2' (with PLANTSTORE_NO_INSTALL=1 nothing is installed)" >&2
		"$(dirname "$0")/../../.ci/install-packages" "$2"
		return
	fi
	echo "no $1 on this machine: install it, as with 'sudo apt-get install $2' or 'brew install $3', or have it fetched from Debian, as with 'make $4 POSTGRES=17', and try again" >&2
	exit 1
}

has_postgresql() {
	for programs in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin /opt/homebrew/opt/postgresql*/bin; do
		[ ! -x "$programs/initdb" ] || return 0
	done
	command -v initdb >/dev/null || command -v pg_config >/dev/null && [ -x "$(pg_config --bindir)/initdb" ]
}

has_pgbouncer() {
	for program in /usr/*bin/pgbouncer; do # Debian's is in /usr/sbin, which is not on everybody's PATH
		[ ! -x "$program" ] || return 0
	done
	command -v pgbouncer >/dev/null
}

target=run
[ "${1-}" != pgbouncer ] || target=test
has_postgresql || missing PostgreSQL postgresql postgresql@18 $target
[ $target = run ] || has_pgbouncer || missing PgBouncer pgbouncer pgbouncer test
