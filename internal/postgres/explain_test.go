package postgres

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// tlsServer stands for a database server: it answers the driver's question for TLS
// (PostgreSQL's manual, "SSL Session Encryption"), and speaks TLS where it has a
// configuration for that. Then it sends messages. Without an answer it hangs up.
func tlsServer(t *testing.T, answer string, config *tls.Config, messages ...pgproto3.BackendMessage) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.ReadFull(conn, make([]byte, 8))
				if answer == "" {
					return
				}
				io.WriteString(conn, answer)
				if config != nil {
					conn = tls.Server(conn, config)
				}
				for _, m := range messages {
					if b, err := m.Encode(nil); err == nil {
						conn.Write(b)
					}
				}
				io.Copy(io.Discard, conn)
			}()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// certificate makes one that an authority of its own signs, for a host and until a
// time, and a file with that authority.
func certificate(t *testing.T, host string, until time.Time) (tls.Certificate, string) {
	t.Helper()
	sign := func(template, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if by == nil {
			by = key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
		if err != nil {
			t.Fatal(err)
		}
		return der, key
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Test authority"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	authorityDER, authorityKey := sign(authority, authority, nil)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until, DNSNames: []string{host}}
	leafDER, leafKey := sign(leaf, authority, authorityKey)
	file := filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authorityDER}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}, file
}

// Whatever keeps a connection to the database from being secure is told apart from a
// server that does not run.
func TestExplainTellsWhyTLSFails(t *testing.T) {
	t.Parallel()
	good, authority := certificate(t, "localhost", time.Now().Add(time.Hour))
	other, otherAuthority := certificate(t, "db9.example", time.Now().Add(time.Hour))
	old, oldAuthority := certificate(t, "localhost", time.Now().Add(-time.Hour))
	speaks := func(c tls.Certificate) string {
		return tlsServer(t, "S", &tls.Config{Certificates: []tls.Certificate{c}})
	}
	wantsCertificate := tlsServer(t, "S", &tls.Config{Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAnyClientCert,
		MaxVersion: tls.VersionTLS12}) // of 1.3, the client's handshake ends before the server refuses
	broken := filepath.Join(t.TempDir(), "broken.pem")
	if err := os.WriteFile(broken, []byte("-----BEGIN NOTHING-----\n-----END NOTHING-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	trusting := &tls.Config{Certificates: []tls.Certificate{good}}
	trust := []pgproto3.BackendMessage{&pgproto3.AuthenticationOk{}, &pgproto3.ReadyForQuery{TxStatus: 'I'}}
	md5 := []pgproto3.BackendMessage{&pgproto3.AuthenticationMD5Password{}}
	refused := func(code, message string) string {
		b, err := (&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: message}).Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		return tlsServer(t, string(b), nil)
	}
	unknown, err := (&pgproto3.ErrorResponse{Severity: "FATAL", Code: "55P02", Message: "no ssl_min_protocol_version"}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	hangsUp := tlsServer(t, "", nil)
	key := func(block *pem.Block) string {
		file := filepath.Join(t.TempDir(), "key.pem")
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	// What does not decrypt is as good as what would with another password.
	encrypted := key(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: make([]byte, 16),
		Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,000102030405060708090A0B0C0D0E0F"}})
	pkcs8 := key(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("geheim")})
	tests := []struct{ name, port, parameters, want string }{
		{"the server speaks none", tlsServer(t, "N", nil), "sslmode=require",
			"the server at localhost:PORT does not speak TLS as sslmode in DATABASE_URL asks for (server refused TLS connection): switch TLS on at the server (ssl = on), or ask for less"},
		{"the server speaks something else", tlsServer(t, "SPAM, SPAM, SPAM", nil), "sslmode=require",
			"the server at localhost:PORT does not speak TLS as sslmode in DATABASE_URL asks for (tls: first record does not look like a TLS handshake): switch TLS on at the server (ssl = on), or ask for less"},
		{"unknown authority", speaks(good), "sslmode=verify-full",
			"the certificate of the server at localhost:PORT is signed by an authority that is not known: name the authority's file with sslrootcert in DATABASE_URL"},
		{"unknown authority, any host", speaks(good), "sslmode=verify-ca&sslrootcert=" + otherAuthority,
			"the certificate of the server at localhost:PORT is signed by an authority that is not known: name the authority's file with sslrootcert in DATABASE_URL"},
		{"other host", speaks(other), "sslmode=verify-full&sslrootcert=" + otherAuthority,
			"the server at localhost:PORT has a certificate for another host (db9.example): name that one in DATABASE_URL, or mend the certificate"},
		{"expired", speaks(old), "sslmode=verify-full&sslrootcert=" + oldAuthority,
			"the certificate of the server at localhost:PORT can't be used: x509: certificate has expired or is not yet valid: "},
		{"client certificate missing", wantsCertificate, "sslmode=verify-full&sslrootcert=" + authority,
			"the server at localhost:PORT refused TLS: tls: "},
		{"file missing", "1", "sslmode=verify-full&sslrootcert=/nonexistent/ca.pem",
			"the file /nonexistent/ca.pem, which DATABASE_URL or a PG* variable names, can't be read: no such file or directory"},
		{"key missing", "1", "sslmode=require&sslcert=/nonexistent/c.pem&sslkey=/nonexistent/k.pem",
			"the file /nonexistent/k.pem, which DATABASE_URL or a PG* variable names, can't be read: no such file or directory"},
		{"half a pair", "1", "sslmode=require&sslcert=/nonexistent/c.pem",
			"sslcert and sslkey in DATABASE_URL (or PGSSLCERT and PGSSLKEY) are no certificate and its key"},
		{"no pair", "1", "sslmode=require&sslcert=" + authority + "&sslkey=" + broken,
			"sslcert and sslkey in DATABASE_URL (or PGSSLCERT and PGSSLKEY) are no certificate and its key"},
		{"no authority in the file", "1", "sslmode=verify-full&sslrootcert=" + broken,
			"sslrootcert in DATABASE_URL (or PGSSLROOTCERT) names a file without a certificate in it"},
		{"nobody there, TLS or not", "1", "sslmode=require",
			"cannot connect to PostgreSQL at localhost:1: connection refused: is it running, and is DATABASE_URL right?"},
		{"no TLS asked for, and an answer that the driver can't make out", tlsServer(t, "R\x00\x00\x00\x08\x00\x00\x00\x63", nil), "sslmode=disable",
			"cannot connect to PostgreSQL at localhost:PORT: it cannot be reached: is it running, and is DATABASE_URL right?"},
		{"TLS at once, which is not known", hangsUp, "sslmode=require&sslnegotiation=direct",
			"the server at localhost:PORT ended the connection: sslnegotiation=direct in DATABASE_URL (or PGSSLNEGOTIATION) needs PostgreSQL 17 or newer with TLS switched on (ssl = on): take it out"},
		{"no channel binding, by password", tlsServer(t, "S", trusting, md5...), "sslmode=require&channel_binding=require",
			"the server at localhost:PORT did not let role \"u\" in as DATABASE_URL asks for (channel binding required but server did not authenticate using channel binding): "},
		{"no channel binding, without any", tlsServer(t, "S", trusting, trust...), "sslmode=require&channel_binding=require",
			"the server at localhost:PORT did not let role \"u\" in as DATABASE_URL asks for (channel binding required but server did not authenticate using channel binding): "},
		{"another method", tlsServer(t, "S", trusting, md5...), "sslmode=require&require_auth=scram-sha-256",
			"the server at localhost:PORT did not let role \"u\" in as DATABASE_URL asks for ("},
		{"no TLS, and channel binding", tlsServer(t, "N", nil), "sslmode=require&channel_binding=require",
			"the server at localhost:PORT does not speak TLS as sslmode in DATABASE_URL asks for (server refused TLS connection): switch TLS on at the server (ssl = on), or ask for less"},
		{"a setting of libpq's only", tlsServer(t, string(unknown), nil), "sslmode=disable&ssl_min_protocol_version=TLSv1.3",
			"DATABASE_URL (or a PG* variable) sets ssl_min_protocol_version, which this driver does not know, and the server at localhost:PORT does not take it either (SQLSTATE 55P02): take it out"},
		{"a parameter that nobody knows", refused("42704", `unrecognized configuration parameter "colour"`), "sslmode=disable&colour=geheim",
			"DATABASE_URL (or a PG* variable) sets colour, which this driver does not know, and the server at localhost:PORT does not take it either (SQLSTATE 42704): take it out"},
		{"a text that became a parameter's name", refused("42602", `invalid configuration parameter name "geheim@x"`), "sslmode=disable&geheim@x=y",
			"DATABASE_URL (or a PG* variable) sets what is no parameter, and the server at localhost:PORT does not take it (SQLSTATE 42602): take it out"},
		{"a text that became a parameter's name, in another way", refused("42704", `unrecognized configuration parameter "geheim@x"`), "sslmode=disable&geheim@x=y",
			"DATABASE_URL (or a PG* variable) sets what is no parameter, and the server at localhost:PORT does not take it (SQLSTATE 42704): take it out"},
		{"key encrypted", "1", "sslmode=require&sslcert=" + authority + "&sslkey=" + encrypted,
			"the key that sslkey in DATABASE_URL (or PGSSLKEY) names is encrypted: give its password with sslpassword (or PGSSLPASSWORD)"},
		{"key encrypted, wrong password", "1", "sslmode=require&sslpassword=geheim&sslcert=" + authority + "&sslkey=" + encrypted,
			"the key that sslkey in DATABASE_URL (or PGSSLKEY) names is encrypted, and sslpassword is not its password"},
		{"key encrypted in a way that the driver can't read", "1", "sslmode=require&sslpassword=geheim&sslcert=" + authority + "&sslkey=" + pkcs8,
			"the key that sslkey in DATABASE_URL (or PGSSLKEY) names can't be read: if it begins with BEGIN ENCRYPTED PRIVATE KEY, store it without a password, or as 'openssl rsa -aes256 -traditional' writes it"},
		{"unknown sslmode", "1", "sslmode=verify",
			"sslmode in DATABASE_URL (or PGSSLMODE) is none that there is: it may be disable, allow, prefer, require, verify-ca or verify-full"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			keywords := fmt.Sprintf("host=localhost port=%s user=u password=geheim dbname=db %s", tt.port, strings.ReplaceAll(tt.parameters, "&", " "))
			for _, url := range []string{"postgres://u:geheim@localhost:" + tt.port + "/db?" + tt.parameters, keywords} {
				_, err := pgconn.Connect(t.Context(), url)
				want := strings.ReplaceAll(tt.want, "PORT", tt.port)
				if got := Explain(err); !strings.HasPrefix(got, want) || strings.Contains(got, "geheim") {
					t.Errorf("%v: Explain = %q\nwant      %q", err, got, want)
				}
			}
		})
	}
}

// The driver takes any text for a way to negotiate TLS, and goes the usual one.
func TestUnknownNegotiationOfTLS(t *testing.T) {
	t.Parallel()
	for way, good := range map[string]bool{"postgres": true, "direct": true, "": true, "foo": false, "Direct": false} {
		for _, url := range []string{"postgres://u:geheim@localhost/db?sslmode=require&sslnegotiation=" + way, "host=localhost password=geheim sslnegotiation='" + way + "'"} {
			want := ""
			if !good {
				want = "sslnegotiation in DATABASE_URL (or PGSSLNEGOTIATION) is none that there is: it may be postgres or direct"
			}
			got := ""
			if err := CheckURL("DATABASE_URL", url); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("CheckURL of sslnegotiation %q: %q, want %q", way, got, want)
			}
		}
	}
}

// The driver takes any text with a = in it for parameters, and sends their names and
// values to the server. A URL among them has a password.
func TestWhatOnlyHasAURLInItIsNone(t *testing.T) {
	t.Parallel()
	const url = "postgres://u:geheim@h/d?sslmode=disable"
	for _, bad := range []string{
		`"` + url + `"`, `'` + url + `'`, " " + url, "\ufeff" + url, "POSTGRES" + url[len("postgres"):], "postgresql+asyncpg" + url[len("postgres"):], "jdbc:" + url,
		"DATABASE_URL=" + url, "DATABASE_URL='" + url + "'", "DATABASE_URL=POSTGRES" + url[len("postgres"):], "host=h DATABASE_URL=" + url,
		"host=" + url, "dbname=" + url, "user=" + url, "options=" + url, "postgres://h,h/d?host=" + strings.ReplaceAll(url, "?", "%3F"),
		"\ufeffhost=h password=geheim", `"host=h password=geheim"`, "host=h password=x geheim@=y", "postgres://u@h/d?geheim@=y",
		"postgres://u:geheim@h/d," + url, "postgres://u@h/" + url, "postgres://u@h/d?dbname=" + strings.ReplaceAll(url, "?", "%3F"), "postgres://u@h/d?user=" + strings.ReplaceAll(url, "?", "%3F"),
		"host=h;password=geheim", "host=h&password=geheim", "host=h,password=geheim", "dbname=d;Password = geheim", "user=u;pwd=geheim", "Server=h;Database=d;Pwd=geheim", "postgres://u@h/d&password=geheim", "postgres://u@h/d;passwd=geheim",
		"host=u:geheim@h", "host=h,u:geheim@h", "host=h application_name=plantstore;password=geheim",
		"host=h sslmode=verify-full sslrootcert=/etc/ca.pem;password=geheim", "postgres://u@h/d?sslmode=verify-full&sslrootcert=/etc/ca.pem;password=geheim",
	} {
		err := CheckURL("DATABASE_URL", bad)
		if _, unread := pgxpool.ParseConfig(bad); err == nil && unread != nil {
			err = errors.New(Explain(unread)) // as whoever opens it tells
		}
		if err == nil || !strings.HasPrefix(err.Error(), "DATABASE_URL cannot be read as a PostgreSQL URL or DSN") || strings.Contains(err.Error(), "geheim") {
			t.Errorf("CheckURL of %q: %v, want that it can't be read, and no more of it", bad, err)
		}
	}
	for _, good := range []string{
		url, "postgresql" + url[len("postgres"):], "postgres://u:a%3A%2F%2Fb@h1:1,h2/d?application_name=https://store.example&pool_max_conns=16",
		"host=/run/postgresql user=u password='a://b' application_name=https://store.example plan_cache_mode=auto store.colour=green", "host=@abstract", "host=/run/a@b", "",
		"postgres://h/d?app.base=https://x", "postgres://h/d?options=-c%20app.url%3Dhttps://x", "postgres://h/d?a$b.größe=1",
		"host=h store.base=https://x", "host=h user=password dbname=a=b password='x;password=y'",
	} {
		if err := CheckURL("DATABASE_URL", good); err != nil {
			t.Errorf("CheckURL of %q: %v, want none", good, err)
		}
	}
}

// What the driver's inner part can read, its outer parts may not.
func TestExplainOptions(t *testing.T) {
	t.Parallel()
	for _, option := range []string{"pool_max_conns=ten", "pool_ping_timeout=geheim", "statement_cache_capacity=foo", "default_query_exec_mode=foo"} {
		_, err := pgxpool.ParseConfig("postgres://u:geheim@localhost/db?sslmode=disable&" + option)
		const want = "DATABASE_URL has an option of the pool or of the driver, such as pool_max_conns or default_query_exec_mode, with a value that it can't have"
		if got := Explain(err); got != want {
			t.Errorf("%s: Explain = %q\nwant      %q", option, got, want)
		}
	}
}

func TestWithPassword(t *testing.T) {
	t.Parallel()
	const password = `a'b\c &=+%20?#@:/ "ü`
	for _, url := range []string{
		"postgres://u@h:5433/d", "postgresql://u:other@h:5433/d?sslmode=disable", "postgres://h:5433/d?user=u&password=other",
		"host=h port=5433 user=u dbname=d", "host=h port=5433 user=u dbname=d password='other one' sslmode=disable",
	} {
		c, err := pgconn.ParseConfig(WithPassword(url, password))
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		got := [...]any{c.Host, c.Port, c.User, c.Database, c.Password}
		if want := [...]any{"h", uint16(5433), "u", "d", password}; got != want {
			t.Errorf("%s: %v, want %v", url, got, want)
		}
	}
}
