package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

func TestCheckURL(t *testing.T) {
	t.Parallel()
	const (
		unreadable = "DATABASE_URL cannot be read as a URL such as postgres://user:password@host:5432/database, or as a DSN such as host=host user=user password='pass word' dbname=database"
		misplaced  = "the user or password in DATABASE_URL has a character that must be escaped in a URL: write \"/\" as %2F, \"@\" as %40, \" \" as %20 and \"%\" as %25"
		wrong      = "DATABASE_URL or a PG* variable is wrong: "
		noName     = "DATABASE_URL has a parameter without a proper name. Remove what is before postgres://, such as a quotation mark, and put values with blanks of a DSN in single quotes"
		twoLines   = "DATABASE_URL has a line break or another control character in it: a database URL is one line"
	)
	for url, want := range map[string]string{
		"":                                    "",
		"postgres://u:s?e#c:r'e\"t!@h:5432/d": "",
		"postgresql://h1:1,h2:2/d?target_session_attrs=read-write":                            "",
		"postgres://u:s%2Fecret@h/d?options=-csearch_path%3Da@b":                              "",
		"host=h user=u password='s e\\'cret' dbname=d pool_max_conns=20 statement_timeout=5s": "",

		"postgres://u:s/ecret@h/d":                    misplaced,
		"postgres://u:1/2@h/d":                        misplaced,
		"postgres:///u:secret@h/d":                    misplaced,
		"postgres://u:s@ecret@h/d":                    misplaced,
		"postgres://u:s e@%c/ret@h/d?sslmode=disable": misplaced,
		"postgres://u:secret%@h/d":                    misplaced,

		"host=h keepalives_idle=5": "DATABASE_URL sets keepalives_idle, a parameter of libpq that this program does not support: remove it",

		"postgres://u:secret@h:p/d":                       wrong + "invalid port",
		"postgres://u:secret@h/d?sslmode=on":              wrong + "failed to configure TLS (sslmode is invalid)",
		"postgres://u:secret@h/d?pool_max_conns=x":        wrong + `cannot parse pool_max_conns (strconv.ParseInt: parsing "x": invalid syntax)`,
		"host=h password=secret sslrootcert=/nonexistent": wrong + "failed to configure TLS (unable to read CA file: open /nonexistent: no such file or directory)",
		"host=h password=s ecret user=u":                  unreadable,
		"secret":                                          unreadable,
		"postgres://u@h/d?secret":                         unreadable,

		`"postgres://u:secret@h/d?sslmode=disable"`:       noName,
		"DATABASE_URL=postgres://u:secret@h/d?sslmode=on": noName,
		"postgres://u:secret@h/d\npassword=secret":        twoLines,
		"postgres://u:secret@h/d\u0085":                   twoLines,
	} {
		got := ""
		if err := CheckURL("DATABASE_URL", url); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("CheckURL of %q:\ngot  %s\nwant %s", url, got, want)
		}
	}
}

// answering answers every connection by answer until the test ends. It returns host and port.
func answering(t *testing.T, answer func(net.Conn)) (host, port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				defer conn.Close()
				answer(conn)
			}()
		}
	}()
	host, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

// refusing answers a client with an error instead of letting it in.
func refusing(code, message string) func(net.Conn) {
	return func(conn net.Conn) {
		b := pgproto3.NewBackend(conn, conn)
		if _, err := b.ReceiveStartupMessage(); err == nil {
			b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code, Message: message})
			_ = b.Flush()
		}
	}
}

func TestConnectErrorsNameTheirCause(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(nil)
	t.Cleanup(web.Close)
	withTLS := func(conn net.Conn) {
		if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil { // the client's question for TLS
			return
		}
		if _, err := conn.Write([]byte{'S'}); err == nil {
			_ = tls.Server(conn, &tls.Config{Certificates: web.TLS.Certificates}).Handshake()
		}
	}
	expired, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	for _, tt := range []struct {
		name   string
		answer func(net.Conn)
		ctx    context.Context
		dsn    string
		want   string
	}{
		{"nobody listens", nil, t.Context(), "host=127.0.0.1 port=1", "cannot connect to PostgreSQL at 127.0.0.1:1: connection refused: is it running, and is DATABASE_URL right?"},
		{"no socket", nil, t.Context(), "host=/nonexistent", "cannot connect to PostgreSQL at /nonexistent: connection refused: is it running, and is DATABASE_URL right?"},
		{"no such host", nil, t.Context(), "host=nowhere.invalid port=1", `cannot connect to PostgreSQL at nowhere.invalid:1: there is no host "nowhere.invalid": correct DATABASE_URL`},
		{"no answer", nil, expired, "host=127.0.0.1 port=1", "cannot connect to PostgreSQL at 127.0.0.1:1: it does not answer in time: is DATABASE_URL right, and does a firewall let connections through?"},
		{"wrong password", refusing("28P01", "password authentication failed"), t.Context(), "sslmode=disable password=secret",
			`the password of role "u" is missing, wrong or expired (VALID UNTIL) at SERVER: correct DATABASE_URL, PGPASSWORD or the password file`},
		{"no database", refusing("3D000", `database "d" does not exist`), t.Context(), "sslmode=disable", `there is no database "d" at SERVER: create it, or correct DATABASE_URL`},
		{"no role", refusing("28000", `role "u" does not exist`), t.Context(), "sslmode=disable", `the server at SERVER refuses the connection: role "u" does not exist (SQLSTATE 28000)`},
		{"unknown authority", withTLS, t.Context(), "sslmode=verify-full",
			"cannot connect to PostgreSQL at SERVER: an unknown authority signed its certificate: let sslrootcert in DATABASE_URL name the file of the right one. Without sslrootcert, the authorities of this machine count"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dsn, want := "user=u dbname=d "+tt.dsn, tt.want
			if tt.answer != nil {
				host, port := answering(t, tt.answer)
				dsn += " host=" + host + " port=" + port
				want = strings.ReplaceAll(want, "SERVER", net.JoinHostPort(host, port))
			}
			_, err := Connect(tt.ctx, "DATABASE_URL", dsn)
			if err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

func TestExplainDatabaseErrors(t *testing.T) {
	t.Parallel()
	const pooler = "no (SQLSTATE %s): a pooler in transaction mode is between. Let it carry prepared statements (PgBouncer: max_prepared_statements, from 1.21 on), or add default_query_exec_mode=exec to DATABASE_URL"
	for _, test := range []struct {
		err  error
		want string
	}{
		{&pgconn.PgError{Code: "42P05", Message: "no"}, fmt.Sprintf(pooler, "42P05")}, // prepared twice in one session
		{&pgconn.PgError{Code: "26000", Message: "no"}, fmt.Sprintf(pooler, "26000")}, // or in another one
		{fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: "42501", Message: "no"}), "no (SQLSTATE 42501)"},
		{&pgconn.PgError{Code: "42703", Message: "no", Hint: "yes"}, "no (SQLSTATE 42703; hint: yes)"},
		{fmt.Errorf("wrapped: %w", context.DeadlineExceeded), "the database did not answer in time"},
		{fmt.Errorf("wrapped: %w", context.Canceled), "interrupted"},
		{errors.New("one\n\ttwo"), "one two"},
	} {
		if got := Explain(test.err, "DATABASE_URL"); got != test.want {
			t.Errorf("Explain(%v):\ngot  %s\nwant %s", test.err, got, test.want)
		}
	}
}
