package main

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"plantstore/internal/plant"
	"plantstore/internal/postgres"
	"plantstore/internal/server"
)

// Each setting of serve changes its own fields only. Each field of the configurations has a
// setting. Settings of JWTs need an issuer.
func TestServeSettingsReachTheirFields(t *testing.T) {
	t.Parallel()
	const (
		database = "--database-url=host=h"
		issuer   = database + " --oidc-issuer=https://login.example --oidc-audience=plants"
	)
	cert, key := certificateFiles(t)
	urlFile := filepath.Join(t.TempDir(), "url")
	writeFile(t, urlFile, "host=elsewhere")
	rows := []struct {
		before, set string // other flags, and the flag under test
		want        func(*service)
	}{
		{"", "--database-url=host=elsewhere", func(s *service) { s.database.URL, s.database.Setting = "host=elsewhere", "--database-url" }},
		{"", "--database-url-file=" + urlFile, func(s *service) {
			s.database.URL, s.database.File, s.database.Setting = "", urlFile, "the file "+urlFile
		}},
		{database, "--tls-cert=" + cert + " --tls-key=" + key, func(s *service) { s.server.Certificate = new(server.Certificate) }},
		{issuer, "--oidc-issuer=https://other.example", func(s *service) { s.issuer.URL = "https://other.example" }},
		{issuer, "--oidc-audience=web", func(s *service) { s.issuer.Audiences = append(s.issuer.Audiences, "web") }},
		{issuer, "--oidc-audience-claim=client_id", func(s *service) { s.issuer.AudienceClaim = "client_id" }},
		{issuer, "--oidc-scope-claim=roles", func(s *service) { s.issuer.ScopeClaim = "roles" }},
		{issuer, "--oidc-scope=ours/delete", func(s *service) { s.issuer.Scope = "ours/delete" }},
		{issuer, "--oidc-principal-claim=azp", func(s *service) { s.issuer.Claim = "azp" }},
		{issuer, "--oidc-budget=5/1h", func(s *service) { s.issuer.Budget = plant.Budget{Most: 5, Period: time.Hour} }},
		{issuer, "--jwks-url=file:///keys.json", func(s *service) { s.issuer.JWKS = "file:///keys.json" }},
		{database, "--drain-delay=7s", func(s *service) { s.server.DrainDelay = 7 * time.Second }},
		{database, "--log-format=text", func(s *service) { s.logFormat = "text" }},
		{database, "--log-level=warn", func(s *service) { s.logLevel = slog.LevelWarn }},
		{database, "--request-timeout=9s", func(s *service) { s.database.RequestTimeout, s.server.RequestTimeout = 9*time.Second, 9*time.Second }},
		{database, "--shutdown-timeout=21s", func(s *service) { s.server.ShutdownTimeout = 21 * time.Second }},
		{database, "--max-in-flight=7", func(s *service) { s.database.MaxInFlight = 7 }},
		{database, "--max-connections=8", func(s *service) { s.server.MaxConnections = 8 }},
		{database, "--rate-limit=600/m,burst=50", func(s *service) { s.server.RateLimit = server.Rate{Count: 600, In: time.Minute, Burst: 50} }},
		{database, "--trusted-proxies=10.0.0.0/8", func(s *service) { s.server.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }},
		{database, "--cors-origins=http://web.example", func(s *service) { s.server.CORSOrigins = []string{"http://web.example"} }},
		{database, "--profiles", func(s *service) { s.server.Profiles = true }},
	}
	options := gocmp.Options{gocmp.AllowUnexported(service{}), cmpopts.IgnoreUnexported(postgres.Config{}), cmpopts.EquateComparable(netip.Prefix{}),
		gocmp.Comparer(func(a, b *server.Certificate) bool { return (a == nil) == (b == nil) })}
	covered := []string{"--help", "--addr", "--admin-addr"} // what listens is held by TestBadCommandLinesAreRejected
	changed := []string{"postgres.Config.Log"}              // what is no setting
	for _, field := range strings.Fields("Plants Tokens JWTs Ready Metrics Log Tracer Build") {
		changed = append(changed, "server.Config."+field)
	}
	for _, row := range rows {
		for flag := range strings.FieldsSeq(row.set) {
			name, _, _ := strings.Cut(flag, "=")
			covered = append(covered, name)
		}
		if row.before == issuer && !strings.HasPrefix(row.set, "--oidc-issuer") {
			_, err := commandLine(t).Parse(strings.Fields("serve " + database + " " + row.set))
			if want := "--oidc-issuer (PLANTSTORE_OIDC_ISSUER) is not set, but other settings of JWTs are"; err == nil || err.Error() != want {
				t.Errorf("%s without an issuer: got %v, want %s", row.set, err, want)
			}
		}
		original := serviceOf(t, cmp.Or(row.before, database))
		want := original
		row.want(&want)
		for _, pair := range [][2]any{{original.database, want.database}, {original.server, want.server}, {original.issuer, want.issuer}} {
			changed = append(changed, differences(pair[0], pair[1])...)
		}
		if diff := gocmp.Diff(want, serviceOf(t, row.before+" "+row.set), options); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.set, diff)
		}
	}
	for _, flag := range serveFlags(t) {
		if !slices.Contains(covered, "--"+flag.Name) {
			t.Errorf("--%s has no row: want what it changes", flag.Name)
		}
	}
	for _, config := range []any{postgres.Config{}, server.Config{}, service{}.issuer} {
		for _, field := range differences(config, nil) {
			if !slices.Contains(changed, field) {
				t.Errorf("no flag changes %s", field)
			}
		}
	}
}

// differences returns the names of a struct's exported fields whose values differ from those of
// another, or of all if that is nil.
func differences(a, b any) (names []string) {
	v := reflect.ValueOf(a)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.IsExported() && (b == nil || !reflect.DeepEqual(v.Field(i).Interface(), reflect.ValueOf(b).Field(i).Interface())) {
			names = append(names, v.Type().String()+"."+f.Name)
		}
	}
	return names
}

func TestLogHasItsFormatAndLeastLevel(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"json": `"level":"WARN","msg":"second"`, "text": "level=WARN msg=second"} {
		var out bytes.Buffer
		buffer := server.NewLogBuffer(&out)
		log := newLog(buffer, format, slog.LevelWarn)
		log.Info("first")
		log.Warn("second")
		buffer.Close()
		if got := out.String(); !strings.Contains(got, want) || strings.Contains(got, "first") {
			t.Errorf("%s from WARN: got %s; want %s and nothing else", format, got, want)
		}
	}
}

// serviceOf returns the service that a command line of serve configures.
func serviceOf(t *testing.T, flags string) service {
	t.Helper()
	parsed, err := commandLine(t).Parse(append([]string{"serve"}, strings.Fields(flags)...))
	if err != nil {
		t.Fatalf("serve %s: %v", flags, err)
	}
	return parsed.Selected().Target.Addr().Interface().(*serveCommand).service()
}

func serveFlags(t *testing.T) []*kong.Flag {
	t.Helper()
	all := commandLine(t).Model.Children
	return all[slices.IndexFunc(all, func(n *kong.Node) bool { return n.Name == "serve" })].Flags
}

// certificateFiles returns the files of a certificate and its key.
func certificateFiles(t *testing.T) (cert, key string) {
	t.Helper()
	web := httptest.NewTLSServer(nil)
	web.Close()
	der, err := x509.MarshalPKCS8PrivateKey(web.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	cert, key = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	writeFile(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})))
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	return cert, key
}
