package postgres

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Connect opens one connection for an operator's command. Of several servers it takes the
// primary. Its error text is for an operator.
func Connect(ctx context.Context, setting, url string) (*pgx.Conn, error) {
	if err := CheckURL(setting, url); err != nil {
		return nil, err
	}
	config, err := parse(url, 10*time.Second)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, errors.New(Explain(err, setting))
	}
	return conn, nil
}

// parse reads a URL. The pool's parameters, which no server knows, are not sent.
func parse(url string, timeout time.Duration) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	c := config.ConnConfig
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, timeout)
	c.RuntimeParams["client_encoding"] = "UTF8"
	c.RuntimeParams["application_name"] = cmp.Or(c.RuntimeParams["application_name"], "plantstore")
	if c.ValidateConnect == nil && slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port }) {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite // of several servers
	}
	return config, nil
}

// Explain returns an error of the driver as one line for an operator. It names the setting
// that has the database's URL, and never shows a password.
func Explain(err error, setting string) string {
	connect, connecting := errors.AsType[*pgconn.ConnectError](err)
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case connecting:
		return explainConnect(connect, pg, setting)
	case answered && (pg.Code == "42P05" || pg.Code == "26000"): // prepared by another client of the session, or not at all
		return fmt.Sprintf("%s (SQLSTATE %s): a pooler in transaction mode is between. Let it carry prepared statements (PgBouncer: max_prepared_statements, from 1.21 on), or add default_query_exec_mode=exec to %s", pg.Message, pg.Code, cmp.Or(setting, "the database's URL"))
	case answered && pg.Hint != "":
		return fmt.Sprintf("%s (SQLSTATE %s; hint: %s)", pg.Message, pg.Code, pg.Hint)
	case answered:
		return fmt.Sprintf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	case errors.Is(err, context.DeadlineExceeded):
		return "the database did not answer in time"
	case errors.Is(err, context.Canceled):
		return "interrupted"
	}
	return oneLine(err)
}

func explainConnect(e *pgconn.ConnectError, pg *pgconn.PgError, setting string) string {
	c := e.Config
	at := servers(&pgx.ConnConfig{Config: *c})
	cannot := fmt.Sprintf("cannot connect to PostgreSQL at %s: ", at)
	dns, unknownHost := errors.AsType[*net.DNSError](e)
	_, unknownAuthority := errors.AsType[x509.UnknownAuthorityError](e)
	switch {
	case pg != nil && pg.Code == "28P01":
		return fmt.Sprintf("the password of role %q is missing, wrong or expired (VALID UNTIL) at %s: correct %s, PGPASSWORD or the password file", c.User, at, setting)
	case pg != nil && pg.Code == "3D000":
		return fmt.Sprintf("there is no database %q at %s: create it, or correct %s", c.Database, at, setting)
	case pg != nil: // a role that is missing or may not log in, no entry in pg_hba.conf, no connection left
		return fmt.Sprintf("the server at %s refuses the connection: %s (SQLSTATE %s)", at, pg.Message, pg.Code)
	case unknownHost:
		return cannot + fmt.Sprintf("there is no host %q: correct %s", dns.Name, setting)
	case errors.Is(e, syscall.ECONNREFUSED), errors.Is(e, syscall.ENOENT):
		return cannot + fmt.Sprintf("connection refused: is it running, and is %s right?", setting)
	case unknownAuthority: // psql asks for the file
		return cannot + fmt.Sprintf("an unknown authority signed its certificate: let sslrootcert in %s name the file of the right one. Without sslrootcert, the authorities of this machine count", setting)
	case pgconn.Timeout(e), errors.Is(e, context.DeadlineExceeded):
		return cannot + fmt.Sprintf("it does not answer in time: is %s right, and does a firewall let connections through?", setting)
	case errors.Is(e, pgconn.ErrReadOnlyConnection), errors.Is(e, pgconn.ErrStandbyConnection):
		return cannot + "it is read-only, and the primary is wanted"
	}
	return oneLine(e)
}

// servers lists the servers of a configuration in the order they are tried.
func servers(c *pgx.ConnConfig) string {
	all := []string{address(c.Host, c.Port)}
	for _, f := range c.Fallbacks {
		if a := address(f.Host, f.Port); !slices.Contains(all, a) { // TLS and plain are two entries
			all = append(all, a)
		}
	}
	return strings.Join(all, ", ")
}

func address(host string, port uint16) string {
	if strings.HasPrefix(host, "/") {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// notDriven are parameters of libpq that the driver would send to the server.
var notDriven = []string{"fallback_application_name", "gssdelegation", "gssencmode", "gsslib", "hostaddr", "keepalives", "keepalives_count",
	"keepalives_idle", "keepalives_interval", "load_balance_hosts", "oauth_client_id", "oauth_client_secret", "oauth_issuer", "oauth_scope",
	"requirepeer", "requiressl", "scram_client_key", "scram_server_key", "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcompression",
	"sslcrl", "sslcrldir", "sslkeylogfile", "tcp_user_timeout"}

// unescaped matches characters that end a URL's user and password too early.
var unescaped = regexp.MustCompile(`[/@ ]|%(?:$|[^0-9A-Fa-f]|.$|.[^0-9A-Fa-f])`)

var parameterName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

// CheckURL returns an error if a setting is no URL or DSN that the driver can use. The error
// is for an operator, and shows nothing of a password. An empty URL stands for libpq's PG*
// variables.
func CheckURL(setting, url string) error {
	if strings.ContainsFunc(url, unicode.IsControl) {
		return fmt.Errorf("%s has a line break or another control character in it: a database URL is one line", setting)
	}
	config, err := pgxpool.ParseConfig(url)
	scheme, rest, _ := strings.Cut(url, "://")
	user := rest[:max(0, strings.LastIndexByte(rest, '@'))]
	if strings.HasPrefix(scheme, "postgres") && unescaped.MatchString(user) && (err != nil || strings.Contains(config.ConnConfig.Host+config.ConnConfig.Database, "@")) {
		return fmt.Errorf(`the user or password in %s has a character that must be escaped in a URL: write "/" as %%2F, "@" as %%40, " " as %%20 and "%%" as %%25`, setting)
	}
	if err != nil {
		unreadable := fmt.Errorf("%s cannot be read as a URL such as postgres://user:password@host:5432/database, "+
			"or as a DSN such as host=host user=user password='pass word' dbname=database", setting)
		_, syntax := pgconn.ParseConfigWithOptions(url, pgconn.ParseConfigOptions{ConnStringAllowedKeys: []string{}})
		if e, ok := errors.AsType[*pgconn.ParseConfigError](err); ok && (syntax == nil || errors.Unwrap(syntax) == nil) {
			readable := *e
			readable.ConnString = "" // the driver can't find every password in it
			return fmt.Errorf("%s or a PG* variable is wrong: %s", setting, strings.TrimPrefix(readable.Error(), "cannot parse ``: "))
		}
		return unreadable
	}
	for name, value := range config.ConnConfig.RuntimeParams {
		switch {
		case slices.Contains(notDriven, name):
			return fmt.Errorf("%s sets %s, a parameter of libpq that this program does not support: remove it", setting, name)
		case !parameterName.MatchString(name) || strings.Contains(value, "://"):
			return fmt.Errorf("%s has a parameter without a proper name. Remove what is before postgres://, such as a quotation mark, and put values with blanks of a DSN in single quotes", setting)
		}
	}
	return nil
}
