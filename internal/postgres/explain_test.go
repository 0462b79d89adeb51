package postgres

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	unsupported := func(name string) string {
		return "DATABASE_URL sets " + name + ", a parameter of libpq that this program does not support: remove it"
	}
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

		"postgres://u:secret@h:p/d":                       wrong + "invalid port",
		"postgres://u:secret@h/d?sslmode=on":              wrong + "failed to configure TLS (sslmode is invalid)",
		"postgres://u:secret@h/d?pool_max_conns=x":        wrong + `cannot parse pool_max_conns (strconv.ParseInt: parsing "x": invalid syntax)`,
		"host=h password=secret sslrootcert=/nonexistent": wrong + "failed to configure TLS (unable to read CA file: open /nonexistent: no such file or directory)",
		"host=h password=s ecret user=u":                  unreadable,
		"secret":                                          unreadable,
		"postgres://u@h/d?secret":                         unreadable,

		"postgres://h/d?gssencmode=disable": unsupported("gssencmode"),
		"host=h keepalives_idle=5":          unsupported("keepalives_idle"),

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

// afterSSLRequest reads the client's question for TLS, and goes on with answer.
func afterSSLRequest(answer func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		if _, err := io.ReadFull(conn, make([]byte, 8)); err == nil {
			answer(conn)
		}
	}
}

func TestConnectErrorsNameTheirCause(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(nil) // its certificate is for 127.0.0.1 and example.com
	t.Cleanup(web.Close)
	folder := t.TempDir()
	its, others := filepath.Join(folder, "its.pem"), filepath.Join(folder, "others.pem")
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := x509.CreateCertificate(nil, &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}, &x509.Certificate{}, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	for name, certificate := range map[string][]byte{its: web.Certificate().Raw, others: authority} {
		if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overTLS := func(answer func(net.Conn)) func(net.Conn) {
		return afterSSLRequest(func(conn net.Conn) {
			if _, err := conn.Write([]byte{'S'}); err == nil {
				answer(tls.Server(conn, &tls.Config{Certificates: web.TLS.Certificates}))
			}
		})
	}
	withTLS := overTLS(func(conn net.Conn) { _ = conn.(*tls.Conn).Handshake() })
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
		{"no password", refusing("28P01", "password authentication failed"), t.Context(), "sslmode=disable",
			`role "u" needs a password at SERVER: set it in DATABASE_URL, in PGPASSWORD or in a password file`},
		{"wrong password", refusing("28P01", "password authentication failed"), t.Context(), "sslmode=disable password=secret",
			`the password of role "u" is wrong at SERVER, or has expired (VALID UNTIL): correct DATABASE_URL, PGPASSWORD or the password file`},
		{"no database", refusing("3D000", `database "d" does not exist`), t.Context(), "sslmode=disable", `there is no database "d" at SERVER: create it, or correct DATABASE_URL`},
		{"no role", refusing("28000", `role "u" does not exist`), t.Context(), "sslmode=disable", `the server at SERVER refuses the connection: role "u" does not exist (SQLSTATE 28000)`},
		{"no TLS", afterSSLRequest(func(conn net.Conn) { _, _ = conn.Write([]byte{'N'}) }), t.Context(), "sslmode=require",
			"cannot connect to PostgreSQL at SERVER: server refused TLS connection: sslmode in DATABASE_URL asks for TLS: switch TLS on at the server (ssl = on), or ask for less"},
		{"no SCRAM", overTLS(func(conn net.Conn) {
			b := pgproto3.NewBackend(conn, conn)
			if _, err := b.ReceiveStartupMessage(); err == nil {
				b.Send(&pgproto3.AuthenticationSASL{AuthMechanisms: []string{"SCRAM-SHA-256"}})
				_ = b.Flush()
			}
		}), t.Context(), "sslmode=require channel_binding=require password=secret",
			"cannot connect to PostgreSQL at SERVER: channel binding required but server does not support SCRAM-SHA-256-PLUS: channel_binding=require in DATABASE_URL needs TLS, and a password that the server asks for and keeps by scram-sha-256 (pg_hba.conf, password_encryption)"},
		{"unknown authority", withTLS, t.Context(), "sslmode=verify-full",
			"an authority unknown to this machine signed the certificate of the server at SERVER: name the authority's file with sslrootcert in DATABASE_URL. Without sslrootcert, the authorities of the machine count; psql asks for the file"},
		{"another authority", withTLS, t.Context(), "sslmode=verify-full sslrootcert=" + others,
			"the authority in sslrootcert did not sign the certificate of the server at SERVER: correct sslrootcert in DATABASE_URL"},
		{"another host", withTLS, t.Context(), "sslmode=verify-full host=localhost sslrootcert=" + its,
			`the certificate of the server at SERVER is not for host "localhost": use a host name of the certificate in DATABASE_URL, or issue another certificate`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dsn, want := "user=u dbname=d "+tt.dsn, tt.want
			if tt.answer != nil {
				host, port := answering(t, tt.answer)
				if strings.Contains(dsn, "host=localhost") {
					host = "localhost"
				}
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

// With sslmode=prefer, a server without TLS is not the cause of an error.
func TestConnectErrorLeavesOutPreferredTLS(t *testing.T) {
	t.Parallel()
	host, port := answering(t, func(conn net.Conn) { _, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n") })
	_, err := Connect(t.Context(), "DATABASE_URL", "user=u dbname=d sslmode=prefer host="+host+" port="+port)
	if err == nil || strings.Contains(err.Error(), "asks for TLS") {
		t.Errorf("a web server: got %v; want an error that does not blame TLS", err)
	}
}
