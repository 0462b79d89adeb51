package postgres

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
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
		renew(c, func() (string, error) { return ReadURL(url) })
		if c.User != tt.user || c.Password != tt.password || c.Host != tt.host || c.Database != "store" || len(c.Fallbacks) != 1 {
			t.Errorf("%s: %s with %s at %s/%s, want %s with %s at %s/store", tt.name, c.User, c.Password, c.Host, c.Database, tt.user, tt.password, tt.host)
		}
	}
	if c, err := pgx.ParseConfig(first); err == nil {
		renew(c, func() (string, error) { return ReadURL(filepath.Join(folder, "missing")) })
		if c.Password != "first" {
			t.Errorf("without the file the password is %s, want that of the start", c.Password)
		}
	}
}
