package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/postgres"
	"plantstore/internal/server"
)

// A target is a database and the setting that names it, for messages.
type target struct{ url, setting string }

// serviceFlags name the database as the service connects to it.
type serviceFlags struct {
	DatabaseURL     string `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"Database as the service connects to it: libpq URL or DSN, several hosts allowed. PG* variables fill the gaps."`
	DatabaseURLFile string `name:"database-url-file" env:"DATABASE_URL_FILE" placeholder:"FILE" help:"File that holds the URL instead. The service reads it again for each connection, so user and password may change."`
}

func (f *serviceFlags) target(parsed *kong.Context) (target, error) {
	return choose(parsed, "database-url", "DATABASE_URL", &f.DatabaseURL, &f.DatabaseURLFile)
}

// ownerFlags name the database for commands that need the owner of the schema. Without a URL
// of the owner's, the service's role is the owner.
type ownerFlags struct {
	MigrateDatabaseURL     string `name:"migrate-database-url" env:"PLANTSTORE_MIGRATE_DATABASE_URL" placeholder:"URL" help:"Database as the owner of the schema, without a connection pooler. Default: that of --database-url."`
	MigrateDatabaseURLFile string `name:"migrate-database-url-file" env:"PLANTSTORE_MIGRATE_DATABASE_URL_FILE" placeholder:"FILE" help:"File that holds the URL instead."`
	MigratePassword        string `name:"migrate-password" env:"PLANTSTORE_MIGRATE_PASSWORD" placeholder:"PASSWORD" help:"Password for --migrate-database-url, where PGPASSWORD is the service's."`
	serviceFlags           `embed:""`

	owner, service target
}

// AfterApply reads the files and chooses the URLs.
func (f *ownerFlags) AfterApply(parsed *kong.Context) (err error) {
	if f.owner, err = choose(parsed, "migrate-database-url", "PLANTSTORE_MIGRATE_DATABASE_URL", &f.MigrateDatabaseURL, &f.MigrateDatabaseURLFile); err != nil {
		return err
	}
	if f.service, err = f.serviceFlags.target(parsed); err != nil {
		return err
	}
	switch {
	case f.owner.url != "" && f.MigratePassword != "":
		f.owner.url = withPassword(f.owner.url, f.MigratePassword)
		f.owner.setting += " (its password: PLANTSTORE_MIGRATE_PASSWORD)"
	case f.MigratePassword != "":
		return errors.New("--migrate-password (PLANTSTORE_MIGRATE_PASSWORD) is set without --migrate-database-url (PLANTSTORE_MIGRATE_DATABASE_URL)")
	case f.owner.url == "":
		f.owner = f.service
	}
	if f.owner.url == "" && !hasPGVariables() {
		return fmt.Errorf("neither --migrate-database-url (PLANTSTORE_MIGRATE_DATABASE_URL) nor --database-url (DATABASE_URL) is set: %s", exampleURL)
	}
	return postgres.CheckURL(f.owner.setting, f.owner.url)
}

const exampleURL = "set it to the database's URL, as postgres://user:password@host:5432/database"

// hasPGVariables reports whether libpq's variables name a database.
func hasPGVariables() bool {
	return slices.ContainsFunc([]string{"PGHOST", "PGDATABASE", "PGSERVICE"}, func(name string) bool { return os.Getenv(name) != "" })
}

// with runs use on a connection of the owner, and explains its error.
func (f *ownerFlags) with(ctx context.Context, use func(*pgx.Conn) error) error {
	conn, err := postgres.Connect(ctx, f.owner.setting, f.owner.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f.explained(use(conn))
}

// explained adds advice for an operator to an error of the owner's database.
func (f *ownerFlags) explained(err error) error {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case connecting:
		return errors.New(postgres.Explain(err, f.owner.setting))
	case answered && pg.Code == "42501": // insufficient_privilege
		return fmt.Errorf("%w: connect as the owner of the schema, see --migrate-database-url (PLANTSTORE_MIGRATE_DATABASE_URL); if this is the owner, 'plantstore doctor' names the missing right", err)
	case answered && (pg.Code == "42P01" || pg.Code == "3F000" || pg.Code == "42883"): // no such table, schema, function
		return fmt.Errorf("%w: apply the migrations with 'plantstore migrate up'", err)
	}
	return err
}

// choose returns the database that a flag or variable names, by its URL or by a file with
// the URL. A flag overrides both variables.
func choose(parsed *kong.Context, flag, variable string, url, file *string) (target, error) {
	setting, fileSetting := variable, variable+"_FILE"
	byFlag, byFileFlag := isGiven(parsed, flag), isGiven(parsed, flag+"-file")
	switch {
	case byFlag && !byFileFlag:
		*file = ""
	case byFileFlag && !byFlag:
		*url = ""
	}
	if byFlag || byFileFlag {
		setting, fileSetting = "--"+flag, "--"+flag+"-file"
	}
	switch {
	case *file == "":
		return target{*url, setting}, postgres.CheckURL(setting, *url)
	case *url != "":
		return target{}, fmt.Errorf("both %s and %s are set: set one of them", setting, fileSetting)
	}
	text, err := os.ReadFile(*file)
	if err != nil {
		return target{}, fmt.Errorf("%s cannot be read: %w", fileSetting, err)
	}
	content := strings.TrimSpace(string(text))
	if content == "" { // which would mean the PG* variables
		return target{}, fmt.Errorf("%s: the file %s is empty", fileSetting, *file)
	}
	setting = "the file " + *file
	return target{content, setting}, postgres.CheckURL(setting, content)
}

// isGiven reports whether a flag is on the command line.
func isGiven(parsed *kong.Context, name string) bool {
	return slices.ContainsFunc(parsed.Path, func(p *kong.Path) bool { return p.Flag != nil && p.Flag.Name == name })
}

// withPassword returns a URL or DSN with a password at its end: the last one counts.
func withPassword(database, password string) string {
	if !strings.HasPrefix(database, "postgres://") && !strings.HasPrefix(database, "postgresql://") {
		return database + " password='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password) + "'"
	}
	separator := "?"
	if strings.Contains(database, "?") {
		separator = "&"
	}
	return database + separator + "password=" + strings.ReplaceAll(url.QueryEscape(password), "+", "%20")
}

// A network is an address or a network on the command line.
type network netip.Prefix

// UnmarshalText reads a network.
func (n *network) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		*n = network(netip.PrefixFrom(a, a.BitLen()))
		return nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return fmt.Errorf("%q is not an address or network such as 10.0.0.7 or 10.0.0.0/8", s)
	}
	*n = network(p)
	return nil
}

// String returns a text that UnmarshalText reads.
func (n network) String() string { return netip.Prefix(n).String() }

// An origin is a web page's origin on the command line.
type origin string

// UnmarshalText reads an origin in the form that browsers send. Any other form would never
// match.
func (o *origin) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || s != u.Scheme+"://"+u.Host ||
		strings.ContainsFunc(u.Host, func(c rune) bool { return c > '~' || 'A' <= c && c <= 'Z' || c == '*' || c == '?' }) ||
		u.Port() == map[string]string{"http": "80", "https": "443"}[u.Scheme] || strings.HasSuffix(u.Host, ":") {
		return fmt.Errorf("%q is not an origin such as https://shop.example.com: write each one in full, in lower case, without wildcards, path and default port", s)
	}
	*o = origin(s)
	return nil
}

// A rateLimit is a rate on the command line.
type rateLimit server.Rate

// UnmarshalText reads a rate limit.
func (r *rateLimit) UnmarshalText(text []byte) error {
	limit, burst, hasBurst := strings.Cut(string(text), ",burst=")
	count, in, _ := strings.Cut(limit, "/")
	n, err := strconv.Atoi(count)
	most := n
	if hasBurst && err == nil {
		most, err = strconv.Atoi(burst)
	}
	time, ok := map[string]time.Duration{"s": time.Second, "m": time.Minute}[in]
	if err != nil || !ok || n < 1 || most < 1 {
		return fmt.Errorf("%q is not a rate such as 200/s, 600/m or 200/s,burst=400", text)
	}
	*r = rateLimit{n, time, most}
	return nil
}

// String returns a text that UnmarshalText reads.
func (r rateLimit) String() string {
	if r == (rateLimit{}) {
		return ""
	}
	return fmt.Sprintf("%d/%c,burst=%d", r.Count, map[time.Duration]rune{time.Second: 's', time.Minute: 'm'}[r.In], r.Burst)
}

// A moment is a time on the command line: RFC 3339, a date, or how long ago.
type moment struct{ time.Time }

// UnmarshalText reads a moment.
func (m *moment) UnmarshalText(text []byte) error {
	s := string(text)
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			m.Time = t
			return nil
		}
	}
	var ago age
	if err := ago.UnmarshalText(text); err != nil {
		return fmt.Errorf("%q is not a time such as 2026-07-01T12:00:00Z, 2026-07-01, or 2h or 7d ago", s)
	}
	m.Time = time.Now().Add(-time.Duration(ago))
	return nil
}

// inOrder rejects a period that ends before it begins.
func inOrder(since, until moment) error {
	if !until.IsZero() && !until.After(since.Time) {
		return fmt.Errorf("--until (%s) is not after --since (%s)", date(until.Time, ""), date(since.Time, ""))
	}
	return nil
}

// An age is a duration on the command line that may be in days.
type age time.Duration

// UnmarshalText reads an age.
func (a *age) UnmarshalText(text []byte) error {
	s := string(text)
	duration := s
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil {
			duration = strconv.Itoa(24*n) + "h"
		}
	}
	d, err := time.ParseDuration(duration)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a duration such as 365d or 36h", s)
	}
	*a = age(d)
	return nil
}

// String returns a text that UnmarshalText reads.
func (a age) String() string {
	d := time.Duration(a)
	if day := 24 * time.Hour; d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}
