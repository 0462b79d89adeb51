package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"plantstore/internal/plant"
	"plantstore/internal/postgres"
	"plantstore/internal/server"
)

// ownerFlags name the database for the commands that need its owner. Its service's is
// taken where the owner's is not set.
type ownerFlags struct {
	DatabaseURL     string `name:"database-url" env:"PLANTSTORE_MIGRATE_DATABASE_URL" help:"Database, as its owner and without a connection pooler between: libpq URL or DSN. PG* variables fill the gaps. Default: that of --service-url."`
	DatabaseURLFile string `name:"database-url-file" env:"PLANTSTORE_MIGRATE_DATABASE_URL_FILE" placeholder:"FILE" help:"File that holds the database URL instead."`
	Password        string `name:"database-password" env:"PLANTSTORE_MIGRATE_PASSWORD" help:"Password for --database-url, or without URLs for the database that PG* variables name, where PGPASSWORD is the service's."`
	ServiceURL      string `name:"service-url" env:"DATABASE_URL" help:"Database as the service connects to it, pool_max_conns included."`
	ServiceURLFile  string `name:"service-url-file" env:"DATABASE_URL_FILE" placeholder:"FILE" help:"File that holds the service's database URL instead."`

	setting, serviceSetting string // what has the URLs, for messages
}

const (
	ownerSetting    = "PLANTSTORE_MIGRATE_DATABASE_URL"
	passwordSetting = "PLANTSTORE_MIGRATE_PASSWORD"
)

// AfterApply reads the files, and makes DatabaseURL the owner's.
func (f *ownerFlags) AfterApply(parsed *kong.Context) (err error) {
	f.DatabaseURL, f.setting, err = chosenURL(parsed, "database-url", ownerSetting, &f.DatabaseURL, &f.DatabaseURLFile)
	if err != nil {
		return err
	}
	f.ServiceURL, f.serviceSetting, err = chosenURL(parsed, "service-url", postgres.ServiceSetting, &f.ServiceURL, &f.ServiceURLFile)
	if err != nil {
		return err
	}
	password := passwordSetting
	if isGiven(parsed, "database-password") {
		password = "--database-password"
	}
	switch owners, services := f.DatabaseURL != "", f.ServiceURL != ""; {
	case !owners && !services && !isDatabaseNamed():
		return fmt.Errorf("neither %s nor %s is set: %s", ownerSetting, postgres.ServiceSetting, likeURL)
	case !owners && services && f.Password != "":
		return fmt.Errorf("%s is the owner's password, and of the URLs only the service's is set: set %s, too", password, ownerSetting)
	case !owners && services:
		f.DatabaseURL, f.setting = f.ServiceURL, f.serviceSetting
	case f.Password != "":
		if !owners {
			f.setting = "a PG* variable"
		}
		f.DatabaseURL, f.setting = postgres.WithPassword(f.DatabaseURL, f.Password), password+" or "+f.setting
	}
	return postgres.CheckURL(f.setting, f.DatabaseURL)
}

// likeURL says what a database's URL looks like.
const likeURL = "set it to the database's URL, as postgres://user:password@host:5432/database"

// isDatabaseNamed reports whether libpq's variables say which database is meant. What
// they say where none is set could be anybody's.
func isDatabaseNamed() bool {
	return slices.ContainsFunc([]string{"PGHOST", "PGDATABASE", "PGSERVICE"}, func(name string) bool { return os.Getenv(name) != "" })
}

// apart refuses two addresses that can't be listened to at a time, of serve and dev. A
// port 0 is any that is free.
func apart(public, admin string) error {
	host, port, err := net.SplitHostPort(public)
	otherHost, otherPort, otherErr := net.SplitHostPort(admin)
	same := host == otherHost || isEveryHost(host) || isEveryHost(otherHost)
	if err != nil || otherErr != nil || strings.TrimLeft(port, "0") != strings.TrimLeft(otherPort, "0") || strings.TrimLeft(port, "0") == "" || !same {
		return nil
	}
	return fmt.Errorf("--addr (PLANTSTORE_ADDR) is %q and --admin-addr (PLANTSTORE_ADMIN_ADDR) is %q: each listener needs an address of its own", public, admin)
}

// isEveryHost reports whether a host is that of all of the machine's addresses.
func isEveryHost(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "" || err == nil && a.IsUnspecified()
}

// explained is an error of the database in words for an operator.
func (f *ownerFlags) explained(err error) error { return explained(err, f.setting) }

// isGiven reports whether a flag is on the command line.
func isGiven(parsed *kong.Context, name string) bool {
	return slices.ContainsFunc(parsed.Path, func(p *kong.Path) bool { return p.Flag != nil && p.Flag.Name == name })
}

// chosenURL returns a database URL, which may be in a file, and what a person changes to
// change it. Where the command line has the one of url and file and a variable the other
// one, the latter is emptied: it does not count.
func chosenURL(parsed *kong.Context, name, variable string, url, file *string) (chosen, setting string, err error) {
	switch byURL, byFile := *url != "" && isGiven(parsed, name), *file != "" && isGiven(parsed, name+"-file"); {
	case byURL && !byFile:
		*file = ""
	case byFile && !byURL:
		*url = ""
	}
	setting, fileSetting := variable, variable+"_FILE"
	if isGiven(parsed, name) {
		setting, fileSetting = "--"+name, "--"+name+"-file"
	}
	switch {
	case *file == "" && *url == "":
		return "", setting, nil
	case *file == "":
		return *url, setting, postgres.CheckURL(setting, *url)
	case *url != "":
		return "", "", fmt.Errorf("both %s and %s are set: set one of them", setting, fileSetting)
	}
	chosen, err = postgres.ReadURL(*file)
	return chosen, "the file " + *file, err
}

// A network is one on the command line, or a single address.
type network netip.Prefix

// UnmarshalText reads a network.
func (n *network) UnmarshalText(text []byte) error {
	s := string(text)
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		*n = network(netip.PrefixFrom(a, a.BitLen()))
		return nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return fmt.Errorf("%q is no address or network: want one as 10.0.0.7 or 10.0.0.0/8", s)
	}
	*n = network(p)
	return nil
}

// A logFormat is one on the command line.
type logFormat string

// UnmarshalText reads a log format.
func (f *logFormat) UnmarshalText(text []byte) error {
	*f = logFormat(text)
	if *f != "json" && *f != "text" {
		return fmt.Errorf("%q is no log format: want json or text", string(text))
	}
	return nil
}

// String is what UnmarshalText reads.
func (n network) String() string { return netip.Prefix(n).String() }

// A rateLimit is one on the command line.
type rateLimit server.Rate

// UnmarshalText reads a rate limit.
func (r *rateLimit) UnmarshalText(text []byte) error {
	limit, burst, bursts := strings.Cut(string(text), ",burst=")
	count, in, _ := strings.Cut(limit, "/")
	n, err := strconv.ParseUint(count, 10, 31)
	most := n
	if bursts && err == nil {
		most, err = strconv.ParseUint(burst, 10, 31)
	}
	time, ok := map[string]time.Duration{"s": time.Second, "m": time.Minute}[in]
	if err != nil || !ok || n < 1 || most < 1 {
		return fmt.Errorf("%q is no rate: want one as 200/s, 600/m or 200/s,burst=400", text)
	}
	*r = rateLimit{int(n), time, int(most)}
	return nil
}

// String is what UnmarshalText reads, and empty for none.
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
		return fmt.Errorf("%q is no time: want one as 2026-07-01T12:00:00Z, a date as 2026-07-01, or how long ago, as 2h or 7d", s)
	}
	m.Time = time.Now().Add(-time.Duration(ago))
	return nil
}

// inOrder refuses a period that ends before it begins. Nothing would be found in it.
func inOrder(since, until moment) error {
	if !until.IsZero() && !until.After(since.Time) {
		return fmt.Errorf("--until (%s) is not after --since (%s)", date(until.Time, ""), date(since.Time, ""))
	}
	return nil
}

// A budget is a deletion budget on the command line.
type budget plant.Budget

// UnmarshalText reads a budget, or none. It refuses an empty one: a script whose variable is
// not set does not mean to have no brake.
func (b *budget) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*b = budget{}
		return nil
	}
	parsed, err := plant.ParseBudget(string(text))
	*b = budget(parsed)
	return err
}

// String is what UnmarshalText reads.
func (b budget) String() string { return plant.Budget(b).String() }

// An age is a duration on the command line that may be in days.
type age time.Duration

// UnmarshalText reads an age.
func (a *age) UnmarshalText(text []byte) error {
	s := string(text)
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		d = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || d < 0 {
		return fmt.Errorf("%q is no age: want one as 365d or 36h", s)
	}
	*a = age(d)
	return nil
}

func (a age) String() string {
	d := time.Duration(a)
	if day := 24 * time.Hour; d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}
