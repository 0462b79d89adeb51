#!/bin/sh
# Makes sure that there is a PostgreSQL to use: server programs on this machine
# or, with the argument "or-docker", a Docker engine that answers. Where neither
# is found it installs PostgreSQL if it may (root, and apt), and says so;
# otherwise it says in one line what to install.
set -eu

[ -z "${TEST_DATABASE_URL:-}" ] || [ "${1:-}" != or-docker ] || exit 0

for programs in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin /opt/homebrew/opt/postgresql*/bin; do
	[ ! -x "$programs/initdb" ] || exit 0
done
if command -v initdb >/dev/null || command -v pg_config >/dev/null && [ -x "$(pg_config --bindir)/initdb" ]; then
	exit 0
fi
if [ "${1:-}" = or-docker ] && docker version >/dev/null 2>&1; then
	exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "no PostgreSQL on this machine: installing Debian's package 'postgresql' ..." >&2
	exec "$(dirname "$0")/../../.ci/install-packages" postgresql
fi
echo "no PostgreSQL on this machine: install its server programs, as with 'sudo apt-get install postgresql' or 'brew install postgresql@18', and try again" >&2
exit 1
