#!/bin/sh
# Makes sure that this machine has PostgreSQL's server programs, for 'make run' and for
# tests that start a server of their own. If they are missing, it says so and installs them
# as root with apt. Otherwise, or if PLANTSTORE_NO_INSTALL is set, it says what to do.
set -eu

for programs in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin /opt/homebrew/opt/postgresql*/bin; do
	[ ! -x "$programs/initdb" ] || exit 0
done
if command -v initdb >/dev/null || command -v pg_config >/dev/null && [ -x "$(pg_config --bindir)/initdb" ]; then
	exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ -z "${PLANTSTORE_NO_INSTALL:-}" ]; then
	echo "no PostgreSQL on this machine: apt-get now installs Debian's package 'postgresql' (with PLANTSTORE_NO_INSTALL=1 nothing is installed)" >&2
	exec "$(dirname "$0")/../../.ci/install-packages" postgresql
fi
echo "no PostgreSQL on this machine: install its server programs, as with 'sudo apt-get install postgresql' or 'brew install postgresql@18', or have them fetched from Debian, as with 'make run POSTGRES=17', and try again" >&2
exit 1
