package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"

	"plantstore/internal/auth"
	"plantstore/internal/migrate"
	"plantstore/internal/plant"
	"plantstore/internal/postgres"
	"plantstore/internal/server"
)

type serveCommand struct {
	serviceFlags       `embed:""`
	Addr               string        `env:"PLANTSTORE_ADDR" default:":8080" help:"Address of the public listener."`
	AdminAddr          string        `env:"PLANTSTORE_ADMIN_ADDR" default:":9090" help:"Address of the operators' listener: /livez, /readyz, /metrics."`
	TLSCert            string        `name:"tls-cert" env:"PLANTSTORE_TLS_CERT" placeholder:"FILE" help:"Certificate of the public listener with its chain, in PEM. Read again when it changes. Default: plain HTTP."`
	TLSKey             string        `name:"tls-key" env:"PLANTSTORE_TLS_KEY" placeholder:"FILE" help:"Key of the certificate, in PEM."`
	OIDCIssuer         string        `name:"oidc-issuer" env:"PLANTSTORE_OIDC_ISSUER" placeholder:"URL" help:"Identity provider. Its JWTs are accepted beside the service's own tokens. Default: none."`
	OIDCAudience       []string      `name:"oidc-audience" env:"PLANTSTORE_OIDC_AUDIENCE" placeholder:"NAME,..." help:"Audiences of this service. A JWT must name one of them."`
	OIDCAudienceClaim  string        `name:"oidc-audience-claim" env:"PLANTSTORE_OIDC_AUDIENCE_CLAIM" default:"aud" help:"Claim of a JWT that names its audience. Amazon Cognito: client_id."`
	OIDCScopeClaim     string        `name:"oidc-scope-claim" env:"PLANTSTORE_OIDC_SCOPE_CLAIM" default:"scope" help:"Claim of a JWT that has its scopes; by default scp, too. Microsoft Entra: roles."`
	OIDCScope          string        `name:"oidc-scope" env:"PLANTSTORE_OIDC_SCOPE" default:"plants:delete" help:"Scope of a JWT that allows deleting plants."`
	OIDCPrincipalClaim string        `name:"oidc-principal-claim" env:"PLANTSTORE_OIDC_PRINCIPAL_CLAIM" default:"sub" help:"Claim of a JWT that names the principal."`
	OIDCBudget         plant.Budget  `name:"oidc-budget" env:"PLANTSTORE_OIDC_BUDGET" placeholder:"N/PERIOD" help:"Deletion budget of each principal of JWTs that has none of its own, as 500/1h or 10000/7d. Default: no limit."`
	JWKSURL            string        `name:"jwks-url" env:"PLANTSTORE_JWKS_URL" placeholder:"URL" help:"URL of the issuer's keys, https or file. Default: OpenID Connect discovery."`
	DrainDelay         time.Duration `env:"PLANTSTORE_DRAIN_DELAY" default:"5s" help:"How long to go on serving, not ready, after SIGTERM."`
	LogFormat          string        `env:"PLANTSTORE_LOG_FORMAT" default:"json" enum:"json,text" help:"Log format: json or text."`
	LogLevel           slog.Level    `env:"PLANTSTORE_LOG_LEVEL" default:"info" help:"Least severe log entry: debug, info, warn or error."`
	limitFlags         `embed:""`

	database    target
	certificate *server.Certificate
}

// limitFlags are the settings that serve and dev share.
type limitFlags struct {
	RequestTimeout  time.Duration `env:"PLANTSTORE_REQUEST_TIMEOUT" default:"10s" help:"Longest work on one request."`
	ShutdownTimeout time.Duration `env:"PLANTSTORE_SHUTDOWN_TIMEOUT" default:"20s" help:"Longest wait for requests in flight at the end."`
	MaxInFlight     int           `env:"PLANTSTORE_MAX_IN_FLIGHT" default:"512" help:"Deletions under way at a time. More wait a moment, then get 503."`
	MaxConnections  int           `env:"PLANTSTORE_MAX_CONNECTIONS" default:"4096" help:"Client connections open at a time. More wait."`
	RateLimit       rateLimit     `env:"PLANTSTORE_RATE_LIMIT" placeholder:"N/s,burst=N" help:"Requests of each principal, as 200/s or 600/m,burst=50. Default: no limit."`
	TrustedProxies  []network     `env:"PLANTSTORE_TRUSTED_PROXIES" placeholder:"NETWORK,..." help:"Addresses and networks of trusted proxies, for X-Forwarded-For. Default: none."`
	CORSOrigins     []origin      `name:"cors-origins" env:"PLANTSTORE_CORS_ORIGINS" placeholder:"ORIGIN,..." help:"Origins of web pages that may use the service, as https://shop.example.com. Default: CORS is off."`
	Profiles        bool          `env:"PLANTSTORE_PROFILES" help:"Serve Go's profiler, /debug/pprof/, on the operators' listener."`
}

func (f *limitFlags) check() error {
	switch {
	case f.RequestTimeout < 500*time.Millisecond || f.RequestTimeout > 10*time.Minute:
		return fmt.Errorf("--request-timeout (PLANTSTORE_REQUEST_TIMEOUT) is %s: it must be from 500ms to 10m", f.RequestTimeout)
	case f.ShutdownTimeout < f.RequestTimeout || f.ShutdownTimeout > time.Hour:
		return fmt.Errorf("--shutdown-timeout (PLANTSTORE_SHUTDOWN_TIMEOUT) is %s: it must be from %s, which is --request-timeout (PLANTSTORE_REQUEST_TIMEOUT), to 1h",
			f.ShutdownTimeout, f.RequestTimeout)
	case f.MaxInFlight < 1:
		return fmt.Errorf("--max-in-flight (PLANTSTORE_MAX_IN_FLIGHT) is %d: it must be at least 1", f.MaxInFlight)
	case f.MaxConnections < 1:
		return fmt.Errorf("--max-connections (PLANTSTORE_MAX_CONNECTIONS) is %d: it must be at least 1", f.MaxConnections)
	}
	return nil
}

// AfterApply rejects values that cannot work, and reads the files.
func (c *serveCommand) AfterApply(parsed *kong.Context) (err error) {
	if c.database, err = c.serviceFlags.target(parsed); err != nil {
		return err
	}
	switch {
	case c.database.url == "" && !hasPGVariables():
		return fmt.Errorf("--database-url (DATABASE_URL) is not set: %s", exampleURL)
	case c.DrainDelay < 0 || c.DrainDelay > 10*time.Minute:
		return fmt.Errorf("--drain-delay (PLANTSTORE_DRAIN_DELAY) is %s: it must be from 0s to 10m", c.DrainDelay)
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("--tls-cert (PLANTSTORE_TLS_CERT) and --tls-key (PLANTSTORE_TLS_KEY) go together: one of them is not set")
	}
	if c.TLSCert != "" {
		if c.certificate, err = server.LoadCertificate(c.TLSCert, c.TLSKey); err != nil {
			return err
		}
	}
	if err := c.checkIssuer(); err != nil {
		return err
	}
	return c.limitFlags.check()
}

func (c *serveCommand) checkIssuer() error {
	if c.OIDCIssuer == "" {
		if len(c.OIDCAudience) > 0 || c.OIDCAudienceClaim != "aud" || c.OIDCScopeClaim != "scope" || c.OIDCScope != auth.ScopeDelete ||
			c.JWKSURL != "" || c.OIDCPrincipalClaim != "sub" || c.OIDCBudget != (plant.Budget{}) {
			return errors.New("--oidc-issuer (PLANTSTORE_OIDC_ISSUER) is not set, but other settings of JWTs are")
		}
		return nil
	}
	for i, audience := range c.OIDCAudience {
		if c.OIDCAudience[i] = strings.TrimSpace(audience); c.OIDCAudience[i] == "" {
			return errors.New("--oidc-audience (PLANTSTORE_OIDC_AUDIENCE) has an empty name in its list: remove the comma")
		}
	}
	for _, s := range []struct{ name, value string }{
		{"--oidc-issuer (PLANTSTORE_OIDC_ISSUER)", c.OIDCIssuer},
		{"--oidc-audience (PLANTSTORE_OIDC_AUDIENCE)", strings.Join(c.OIDCAudience, ",")},
		{"--oidc-audience-claim (PLANTSTORE_OIDC_AUDIENCE_CLAIM)", c.OIDCAudienceClaim},
		{"--oidc-scope-claim (PLANTSTORE_OIDC_SCOPE_CLAIM)", c.OIDCScopeClaim},
		{"--oidc-scope (PLANTSTORE_OIDC_SCOPE)", c.OIDCScope},
		{"--oidc-principal-claim (PLANTSTORE_OIDC_PRINCIPAL_CLAIM)", c.OIDCPrincipalClaim},
	} {
		if s.value == "" || strings.TrimSpace(s.value) != s.value {
			return fmt.Errorf("%s is %q: set it, without blanks around it", s.name, s.value)
		}
	}
	if c.JWKSURL == "" {
		if err := auth.CheckIssuer(c.OIDCIssuer); err != nil {
			return fmt.Errorf("--oidc-issuer (PLANTSTORE_OIDC_ISSUER): %w", err)
		}
	} else if err := auth.CheckURL(c.JWKSURL, "https", "file"); err != nil {
		return fmt.Errorf("--jwks-url (PLANTSTORE_JWKS_URL): %w", err)
	}
	return nil
}

// Run serves until ctx ends. It takes both ports before anything else.
func (c *serveCommand) Run(ctx context.Context, console *console, parsed *kong.Context) error {
	public, err := listen("--addr (PLANTSTORE_ADDR)", c.Addr)
	if err != nil {
		return err
	}
	admin, err := listen("--admin-addr (PLANTSTORE_ADMIN_ADDR)", c.AdminAddr)
	if err != nil {
		return err
	}
	return serve(ctx, console, c.service(), public, admin, changed(parsed))
}

// listen takes a port. An address that cannot be one is a bad setting; a port in use may be
// free later.
func listen(setting, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		return l, nil
	}
	_, badAddress := errors.AsType[*net.AddrError](err)
	_, unknownName := errors.AsType[*net.DNSError](err)
	if badAddress || unknownName {
		return nil, &exitError{exitUsage, fmt.Errorf("%s is %q: %w: use an address such as :8080 or 127.0.0.1:8080", setting, addr, err)}
	}
	return nil, fmt.Errorf("%s: %w", setting, err)
}

// changed returns the settings that are not their defaults, for the log. A database's URL
// and those of others may have a secret in them.
func changed(parsed *kong.Context) (settings []any) {
	for _, f := range parsed.Flags() {
		value := fmt.Sprint(f.Target.Interface())
		if strings.EqualFold(value, f.Default) || !f.HasDefault && f.Target.IsZero() {
			continue
		}
		switch {
		case f.Name == "database-url":
			value = "set"
		case f.PlaceHolder == "URL":
			value = auth.ShownURL(value)
		}
		settings = append(settings, slog.String(strings.ReplaceAll(f.Name, "-", "_"), value))
	}
	return settings
}

// A service has the configurations from the settings of serve or dev. Fields that are no
// settings, such as the log and the repositories, are empty.
type service struct {
	database  postgres.Config
	server    server.Config
	issuer    auth.Issuer // without URL: no JWTs are accepted
	logFormat string
	logLevel  slog.Level
}

func (c *serveCommand) service() service {
	s := c.limitFlags.service()
	s.database.URL, s.database.File, s.database.Setting = c.DatabaseURL, c.DatabaseURLFile, c.database.setting
	s.server.Certificate, s.server.DrainDelay = c.certificate, c.DrainDelay
	s.issuer = auth.Issuer{URL: c.OIDCIssuer, JWKS: c.JWKSURL, Claim: c.OIDCPrincipalClaim, Budget: c.OIDCBudget,
		Audiences: c.OIDCAudience, AudienceClaim: c.OIDCAudienceClaim, ScopeClaim: c.OIDCScopeClaim, Scope: c.OIDCScope}
	s.logFormat, s.logLevel = c.LogFormat, c.LogLevel
	return s
}

func (f *limitFlags) service() service {
	s := service{
		database: postgres.Config{RequestTimeout: f.RequestTimeout, MaxInFlight: f.MaxInFlight},
		server: server.Config{RequestTimeout: f.RequestTimeout, ShutdownTimeout: f.ShutdownTimeout, MaxConnections: f.MaxConnections,
			RateLimit: server.Rate(f.RateLimit), Profiles: f.Profiles},
	}
	for _, n := range f.TrustedProxies {
		s.server.TrustedProxies = append(s.server.TrustedProxies, netip.Prefix(n))
	}
	for _, o := range f.CORSOrigins {
		s.server.CORSOrigins = append(s.server.CORSOrigins, string(o))
	}
	return s
}

// serve runs the service until ctx ends, and until its requests in flight are answered. It
// logs the settings that are not their defaults.
func serve(ctx context.Context, console *console, s service, public, admin net.Listener, settings []any) error {
	signal.Ignore(syscall.SIGPIPE) // where nobody reads the log any more, deletions go on
	buffer := server.NewLogBuffer(console.err)
	defer buffer.Close()
	log := newLog(buffer, s.logFormat, s.logLevel)
	for _, w := range console.warnings {
		log.Warn(w)
	}

	s.database.Log = log
	db, err := postgres.Open(context.WithoutCancel(ctx), s.database) // requests in flight outlive ctx
	if err != nil {
		return &exitError{exitUsage, err}
	}
	defer db.Close()
	config := s.server
	versions := migrate.Versions()
	config.Plants, config.Tokens = db.Plants(), db.Tokens()
	config.Ready = func(ctx context.Context) error { return db.Ready(ctx, versions) }
	config.Metrics, config.Log = []prometheus.Collector{db}, log
	config.Build = server.Build{Version: version, Commit: commit, Schema: migrate.Latest()}
	if s.issuer.URL != "" {
		config.JWTs = auth.NewVerifier(s.issuer, log)
	}
	tracer, err := newTracer(ctx, log)
	if err != nil {
		return err
	}
	if tracer != nil {
		config.Tracer = tracer
		defer endTraces(ctx, log, tracer)
	}

	background, stop := context.WithCancel(context.WithoutCancel(ctx)) // tokens are read until the last request
	var tasks sync.WaitGroup
	tasks.Go(func() { db.Run(background) })
	defer tasks.Wait()
	defer stop()
	log.Info("serving", "version", version, "commit", commit, "go", runtime.Version(), "schema", migrate.Latest(),
		"addr", public.Addr().String(), "admin_addr", admin.Addr().String(), "pool", db.MaxConns(),
		"cores", runtime.GOMAXPROCS(0), "traces", tracer != nil, slog.Group("settings", settings...))
	if err := server.New(config).Serve(ctx, public, admin); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

func newLog(buffer *server.LogBuffer, format string, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "text" {
		return slog.New(buffer.Handler(slog.NewTextHandler(buffer, options)))
	}
	return slog.New(buffer.Handler(slog.NewJSONHandler(buffer, options)))
}
