package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// ServiceSetting is the setting that has the service's URL.
const ServiceSetting = "DATABASE_URL"

// Explain says in one plain sentence why a database could not be used, and what
// to look at. It tells host, database and role, never a password.
func Explain(err error) string { return ExplainFor(err, ServiceSetting) }

// ExplainFor is Explain where the URL comes from another setting than the service's. An
// error of a DB that could not connect brings its setting along.
func ExplainFor(err error, setting string) string {
	if e, ok := errors.AsType[*sourcedError](err); ok {
		return e.explain()
	}
	if parse, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		return explainSettings(parse, setting)
	}
	connect, isConnect := errors.AsType[*pgconn.ConnectError](err)
	pg := pgError(err)
	if !isConnect {
		if pg != nil {
			if pg.Hint != "" {
				return fmt.Sprintf("%s (SQLSTATE %s; hint: %s)", pg.Message, pg.Code, pg.Hint)
			}
			return fmt.Sprintf("%s (SQLSTATE %s)", pg.Message, pg.Code)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return "the database did not answer in time"
		}
		if errors.Is(err, context.Canceled) {
			return "interrupted"
		}
		if pgconn.SafeToRetry(err) { // which it may be, see errNotSent
			return "the connection is closed"
		}
		return err.Error()
	}
	c := connect.Config
	at := hosts(c)
	if pg != nil {
		switch pg.Code {
		case invalidPassword:
			return explainPassword(c, setting)
		case "28000":
			return fmt.Sprintf("role %q may not log in to database %q at %s: %s", c.User, c.Database, at, pg.Message)
		case "3D000":
			return fmt.Sprintf("there is no database %q at %s: create it, or correct %s", c.Database, at, setting)
		case "53300":
			return fmt.Sprintf("the server at %s has no connection left for role %q", at, c.User)
		case "55P02", "42602", "42704": // cant_change_runtime_param, invalid_name, undefined_object
			// What the driver does not know it sends on to the server. That may be anything, so
			// of the server's message only the name of a parameter is told.
			name := ""
			for n := range c.RuntimeParams {
				if strings.Contains(pg.Message, n) && len(n) > len(name) && parameterName.MatchString(n) {
					name = n
				}
			}
			if name == "" {
				return fmt.Sprintf("%s (or a PG* variable) sets what is no parameter, and the server at %s does not take it (SQLSTATE %s): take it out", setting, at, pg.Code)
			}
			return fmt.Sprintf("%s (or a PG* variable) sets %s, which this driver does not know, and the server at %s does not take it either (SQLSTATE %s): take it out",
				setting, name, at, pg.Code)
		case "57P03":
			return fmt.Sprintf("the server at %s is starting up, shutting down or recovering", at)
		}
		return fmt.Sprintf("the server at %s refused the connection: %s (SQLSTATE %s)", at, pg.Message, pg.Code)
	}
	if why := explainTLS(connect, setting); why != "" {
		return why
	}
	dns, isDNS := errors.AsType[*net.DNSError](err)
	why := "it cannot be reached"
	switch {
	case isDNS:
		why = "the name " + strconv.Quote(dns.Name) + " is not known"
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "connection refused"
	case errors.Is(err, syscall.ENOENT):
		why = "the socket does not exist"
	case errors.Is(err, context.DeadlineExceeded):
		why = "it does not answer"
	case errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrStandbyConnection):
		why = "it is not a writable primary"
	}
	return fmt.Sprintf("cannot connect to PostgreSQL at %s: %s: is it running, and is %s right?", at, why, setting)
}

func (e *sourcedError) explain() string {
	why := ExplainFor(e.error, e.setting)
	connect, ok := errors.AsType[*pgconn.ConnectError](e.error)
	if !ok || e.untaken == nil {
		return why
	}
	if sqlState(connect) == invalidPassword {
		why = wrongPassword(connect.Config) // the right one may be there already
	}
	return *e.untaken + ". The service still uses what it read at its start: " + why
}

// IsUnusable reports whether the URL of a database is what is wrong: no server was
// asked.
func IsUnusable(err error) bool {
	_, ok := errors.AsType[*pgconn.ParseConfigError](err)
	return ok
}

// explainPassword says where to correct a password that was refused: where it came
// from, as far as that can be told.
func explainPassword(c *pgconn.Config, setting string) string {
	switch c.Password {
	case "":
		return fmt.Sprintf("role %q needs a password at %s: give it in %s, PGPASSWORD or a password file", c.User, hosts(c), setting)
	case os.Getenv("PGPASSWORD"):
		return wrongPassword(c) + ": correct it in PGPASSWORD"
	}
	return fmt.Sprintf("%s: correct it in %s, or in the password file if there is one", wrongPassword(c), setting)
}

func wrongPassword(c *pgconn.Config) string {
	return fmt.Sprintf("the password for role %q is wrong at %s, or its time is over (VALID UNTIL)", c.User, hosts(c))
}

// explainSettings says what is wrong with a URL that can't be used. The text of the
// driver's error can quote a URL that is too broken to redact, so it is not shown.
func explainSettings(e *pgconn.ParseConfigError, setting string) string {
	if file, ok := errors.AsType[*fs.PathError](e); ok {
		if misplaced.MatchString(file.Path) {
			return unreadable(setting)
		}
		return fmt.Sprintf("the file %s, which %s or a PG* variable names, can't be read: %v", file.Path, setting, file.Err)
	}
	if _, err := pgconn.ParseConfig(e.ConnString); err == nil {
		return setting + " has an option of the pool or of the driver, such as pool_max_conns or default_query_exec_mode, with a value that it can't have"
	}
	key := "the key that sslkey in " + setting + " (or PGSSLKEY) names "
	switch cause := cause(e); {
	case cause.Error() == "unable to find sslpassword":
		return key + "is encrypted: give its password with sslpassword (or PGSSLPASSWORD)"
	case errors.Is(cause, x509.IncorrectPasswordError):
		return key + "is encrypted, and sslpassword is not its password"
	case cause.Error() == "tls: failed to parse private key":
		return key + "can't be read: if it begins with BEGIN ENCRYPTED PRIVATE KEY, store it without a password, or as 'openssl rsa -aes256 -traditional' writes it"
	case usableWith(e.ConnString, "sslmode", "prefer"):
		return "sslmode in " + setting + " (or PGSSLMODE) is none that there is: it may be disable, allow, prefer, require, verify-ca or verify-full"
	case usableWith(e.ConnString, "sslmode", "disable"):
		return "sslcert and sslkey in " + setting + " (or PGSSLCERT and PGSSLKEY) are no certificate and its key"
	case usableWith(e.ConnString, "sslrootcert", "system"):
		return "sslrootcert in " + setting + " (or PGSSLROOTCERT) names a file without a certificate in it"
	}
	return unreadable(setting)
}

func unreadable(setting string) string {
	return setting + " cannot be read as a PostgreSQL URL or DSN, such as postgres://user:password@host:5432/database"
}

// usableWith reports whether a URL or DSN can be read once it has another parameter.
// The driver tells faults of these by their text only.
func usableWith(url, name, value string) bool {
	_, err := pgconn.ParseConfig(withParameter(url, name, value))
	return err == nil
}

// WithPassword returns a URL or DSN that has a password, whatever it had before.
func WithPassword(url, password string) string { return withParameter(url, "password", password) }

// withParameter returns a URL or DSN with a parameter at its end, which is the one that
// counts.
func withParameter(address, name, value string) string {
	if !isURL(address) {
		return address + " " + name + "='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
	}
	glue := "?"
	if strings.Contains(address, "?") {
		glue = "&"
	}
	return address + glue + name + "=" + strings.ReplaceAll(url.QueryEscape(value), "+", "%20") // a plus is one, as in libpq
}

// explainTLS says why a connection is not as secure as it has to be. It returns
// nothing where that is not what went wrong.
func explainTLS(e *pgconn.ConnectError, setting string) string {
	at := hosts(e.Config)
	if _, ok := errors.AsType[x509.UnknownAuthorityError](e); ok {
		return fmt.Sprintf("the certificate of the server at %s is signed by an authority that is not known: name the authority's file with sslrootcert in %s", at, setting)
	}
	if h, ok := errors.AsType[x509.HostnameError](e); ok {
		return fmt.Sprintf("the server at %s has a certificate for another host (%s): name that one in %s, or mend the certificate", at, names(h.Certificate), setting)
	}
	if c, ok := errors.AsType[x509.CertificateInvalidError](e); ok {
		return fmt.Sprintf("the certificate of the server at %s can't be used: %v", at, c)
	}
	if op, ok := errors.AsType[*net.OpError](e); ok && op.Op == "remote error" { // crypto/tls: an alert
		return fmt.Sprintf("the server at %s refused TLS: %v: does it ask for a client certificate (sslcert and sslkey in %s)?", at, op.Err, setting)
	}
	if e.Config.SSLNegotiation == "direct" && (errors.Is(e, io.EOF) || errors.Is(e, io.ErrUnexpectedEOF) || errors.Is(e, syscall.ECONNRESET)) {
		return fmt.Sprintf("the server at %s ended the connection: sslnegotiation=direct in %s (or PGSSLNEGOTIATION) needs PostgreSQL 17 or newer with TLS switched on (ssl = on): take it out", at, setting)
	}
	_, garbled := errors.AsType[tls.RecordHeaderError](e)
	refused := cause(e).Error() == "server refused TLS connection"
	if (e.Config.ChannelBinding == "require" || e.Config.RequireAuth != "" || e.Config.SSLCertMode == "require") && !garbled && !refused && isDriversOwn(e) {
		return fmt.Sprintf("the server at %s did not let role %q in as %s asks for (%v): have its pg_hba.conf ask for that, as by scram-sha-256 with TLS, or change channel_binding, require_auth or sslcertmode", at, e.Config.User, setting, cause(e))
	}
	if e.Config.TLSConfig != nil && (garbled || isDriversOwn(e)) {
		return fmt.Sprintf("the server at %s does not speak TLS as sslmode in %s asks for (%v): switch TLS on at the server (ssl = on), or ask for less", at, setting, cause(e))
	}
	return ""
}

// isDriversOwn reports whether the driver itself refused to go on with a server that
// answered. It has no types for that.
func isDriversOwn(e *pgconn.ConnectError) bool {
	_, network := errors.AsType[net.Error](e)
	_, standby := errors.AsType[*pgconn.NotPreferredError](e)
	for _, other := range []error{io.EOF, io.ErrUnexpectedEOF, context.Canceled, context.DeadlineExceeded,
		pgconn.ErrReadOnlyConnection, pgconn.ErrStandbyConnection} {
		network = network || errors.Is(e, other)
	}
	return !network && !standby
}

// cause is what an error began with: of several, the first.
func cause(err error) error {
	for {
		switch e := err.(type) {
		case interface{ Unwrap() []error }:
			err = e.Unwrap()[0]
		case interface{ Unwrap() error }:
			inner := e.Unwrap()
			if inner == nil {
				return err
			}
			err = inner
		default:
			return err
		}
	}
}

// names lists the hosts that a certificate is for.
func names(c *x509.Certificate) string {
	all := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}
