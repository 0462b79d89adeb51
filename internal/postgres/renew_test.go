package postgres

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// What a connection is made with follows the files, and never leads to another database.
func TestCredentialsAreReadAgain(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	passwords := write("passwords", "*:*:*:*:from-the-password-file")
	url := write("url", "")
	const first = "host=db1,db2 user=first password=first dbname=store sslmode=disable"
	for _, tt := range []struct{ name, url, user, password, host string }{
		{"the same", first, "first", "first", "db1"},
		{"password", "host=db1,db2 user=first password=second dbname=store sslmode=disable", "first", "second", "db1"},
		{"role", "host=db1,db2 user=second password=second dbname=store sslmode=disable\n", "second", "second", "db1"},
		{"password file", "host=db1,db2 user=first dbname=store sslmode=disable passfile=" + passwords, "first", "from-the-password-file", "db1"},
		{"other servers", "host=db3 user=second password=second dbname=store sslmode=disable", "first", "first", "db1"},
		{"other order of servers", "host=db2,db1 user=second password=second dbname=store sslmode=disable", "first", "first", "db1"},
		{"other database", "host=db1,db2 user=second password=second dbname=other sslmode=disable", "first", "first", "db1"},
		{"half written", "host=db1,db2 user=", "first", "first", "db1"},
		{"unreadable", "host=db1,db2 user=second sslmode=verify", "first", "first", "db1"},
		{"empty", "", "first", "first", "db1"},
	} {
		c, err := pgx.ParseConfig(first)
		if err != nil {
			t.Fatal(err)
		}
		write("url", tt.url)
		renew(c, "the file", func() (string, error) { return ReadURL(url) })
		if c.User != tt.user || c.Password != tt.password || c.Host != tt.host || c.Database != "store" || len(c.Fallbacks) != 1 {
			t.Errorf("%s: %s with %s at %s/%s, want %s with %s at %s/store", tt.name, c.User, c.Password, c.Host, c.Database, tt.user, tt.password, tt.host)
		}
	}
	if c, err := pgx.ParseConfig(first); err == nil {
		renew(c, "the file", func() (string, error) { return ReadURL(filepath.Join(folder, "missing")) })
		if c.Password != "first" {
			t.Errorf("without the file the password is %s, want that of the start", c.Password)
		}
	}
}

// Readiness, the log and the cause of an answer say the same of a file with the URL: what
// to correct in it, or why it was not taken.
func TestAFileThatIsNotTakenIsToldOf(t *testing.T) {
	t.Parallel()
	refusal, err := (&pgproto3.ErrorResponse{Severity: "FATAL", Code: invalidPassword, Message: "no"}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	port := tlsServer(t, string(refusal), nil)
	const stale = ". The service still uses what it read at its start: "
	const noURL = " cannot be read as a PostgreSQL URL or DSN, such as postgres://user:password@host:5432/database"
	const before = ": take out what is before postgres:// in it, such as a quotation mark or a name, and what is no parameter; only blanks divide the parameters of a DSN"
	const wrong = `the password for role "u" is wrong at 127.0.0.1:PORT, or its time is over (VALID UNTIL)`
	for _, tt := range []struct{ name, now, want string }{ // without a text now: the file is gone
		{"taken", "host=127.0.0.1 port=PORT user=u password=geheim2 dbname=store sslmode=disable", wrong + ": correct it in the file FILE, or in the password file if there is one"},
		{"other server", "host=127.0.0.2 port=PORT user=u password=geheim2 dbname=store sslmode=disable", "the file FILE names another server or database than at the start: restart the service for that" + stale + wrong},
		{"other database", "host=127.0.0.1 port=PORT user=u password=geheim2 dbname=geheim sslmode=disable", "the file FILE names another server or database than at the start: restart the service for that" + stale + wrong},
		{"unknown sslmode", "host=127.0.0.1 port=PORT user=u password=geheim2 dbname=store sslmode=disabled",
			"sslmode in the file FILE (or PGSSLMODE) is none that there is: it may be disable, allow, prefer, require, verify-ca or verify-full" + stale + wrong},
		{"half written", "host=127.0.0.1 port=PORT user=u password='geheim", "the file FILE cannot be read as a PostgreSQL URL or DSN, such as postgres://user:password@host:5432/database" + stale + wrong},
		{"in quotes", `"postgres://u:geheim@127.0.0.1:PORT/store?sslmode=disable"`, "the file FILE" + noURL + before + stale + wrong},
		{"with the name of its variable", "DATABASE_URL=postgres://u:geheim@127.0.0.1:PORT/store?sslmode=disable", "the file FILE" + noURL + before + stale + wrong},
		{"empty", "\n", "the file with the database's URL, FILE, is empty" + stale + wrong},
		{"gone", "", "the file with the database's URL can't be read: open FILE: no such file or directory" + stale + wrong},
	} {
		file := filepath.Join(t.TempDir(), "url")
		fill := func(s string) string { return strings.NewReplacer("PORT", port, "FILE", file).Replace(s) }
		write := func(content string) {
			if err := os.WriteFile(file, []byte(fill(content)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("host=127.0.0.1 port=PORT user=u password=geheim dbname=store sslmode=disable")
		db, err := OpenFile(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var log bytes.Buffer
		db.LogFaults(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key != "cause" {
				return slog.Attr{}
			}
			return a
		}})))
		write(tt.now)
		if tt.now == "" {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		cause := judge(db.Lend(in(t, patience), func(*pgx.Conn) error { return nil }), true).err
		got := map[string]string{"readiness": db.Ready(in(t, patience), nil).Error(), "the log": log.String(), "a deletion": cause.Error()}
		for who, said := range got {
			want := fill(tt.want)
			if who == "the log" {
				want = strings.ReplaceAll(want, `"`, `\"`)
			}
			if !strings.Contains(said, want) || who == "readiness" && said != want || strings.Contains(said, "geheim") {
				t.Errorf("%s: %s says %s\nwant %s", tt.name, who, said, want)
			}
		}
	}
}

// A URL without a database means one that is called like the role, and that is another for another role.
func TestRenewKeepsTheDatabaseOfARole(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		before, now string
		taken       bool
		database    string
	}{
		{"host=h user=a password=x", "host=h user=a password=y", true, "a"},
		{"host=h user=a password=x", "host=h user=b password=y", false, "a"},
		{"host=h user=a password=x", "host=h user=b password=y dbname=a", true, "a"},
		{"host=h user=a password=x dbname=store", "host=h user=b password=y dbname=store", true, "store"},
	} {
		c, err := pgx.ParseConfig(tt.before)
		if err != nil {
			t.Fatal(err)
		}
		err = renew(c, "DATABASE_URL", func() (string, error) { return tt.now, nil })
		if taken := err == nil && c.Password == "y"; taken != tt.taken || c.Database != tt.database {
			t.Errorf("%s, then %s: %v, password %s, database %s; want it taken: %v, and database %s", tt.before, tt.now, err, c.Password, c.Database, tt.taken, tt.database)
		}
	}
}
