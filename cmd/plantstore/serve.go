package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"plantstore/internal/auth"
	"plantstore/internal/doctor"
	"plantstore/internal/migrate"
	"plantstore/internal/plant"
	"plantstore/internal/postgres"
	"plantstore/internal/server"
)

type serveCommand struct {
	DatabaseURL        string        `name:"database-url" env:"DATABASE_URL" help:"Database to serve: libpq URL or DSN, several hosts allowed. PG* variables fill the gaps."`
	DatabaseURLFile    string        `name:"database-url-file" env:"DATABASE_URL_FILE" placeholder:"FILE" help:"File that holds the database URL instead. It is read again for each connection, so role and password may change."`
	Addr               string        `env:"PLANTSTORE_ADDR" default:":8080" help:"Address of the public listener."`
	AdminAddr          string        `env:"PLANTSTORE_ADMIN_ADDR" default:":9090" help:"Address of the operators' listener: /livez, /readyz, /metrics."`
	TLSCert            string        `name:"tls-cert" env:"PLANTSTORE_TLS_CERT" placeholder:"FILE" help:"Certificate of the public listener, with its chain, in PEM. Read again when it changes. Default: plain HTTP."`
	TLSKey             string        `name:"tls-key" env:"PLANTSTORE_TLS_KEY" placeholder:"FILE" help:"Key of the certificate, in PEM."`
	OIDCIssuer         string        `name:"oidc-issuer" env:"PLANTSTORE_OIDC_ISSUER" placeholder:"URL" help:"Identity provider whose JWTs are taken, beside our own tokens. Default: none are."`
	OIDCAudience       string        `name:"oidc-audience" env:"PLANTSTORE_OIDC_AUDIENCE" help:"What the audience (aud) of a JWT has to name."`
	OIDCPrincipalClaim string        `name:"oidc-principal-claim" env:"PLANTSTORE_OIDC_PRINCIPAL_CLAIM" default:"sub" help:"Which claim of a JWT names the principal."`
	OIDCBudget         budget        `name:"oidc-budget" env:"PLANTSTORE_OIDC_BUDGET" placeholder:"N/PERIOD" help:"How many plants each principal that comes with a JWT may delete in a time, as 500/1h or 10000/7d. Default: any number."`
	JWKSURL            string        `name:"jwks-url" env:"PLANTSTORE_JWKS_URL" placeholder:"URL" help:"Where the issuer's keys are, https or file. Default: OpenID Connect discovery."`
	DrainDelay         time.Duration `env:"PLANTSTORE_DRAIN_DELAY" default:"5s" help:"How long to go on serving, unready, after SIGTERM."`
	LogFormat          logFormat     `env:"PLANTSTORE_LOG_FORMAT" default:"json" help:"Log format: json or text."`
	LogLevel           slog.Level    `env:"PLANTSTORE_LOG_LEVEL" default:"info" help:"Least severe log entry: debug, info, warn or error."`
	serveTuning        `embed:""`

	setting     string // what has the database's URL, for messages
	certificate *server.Certificate
}

// serveTuning are the settings that serve and dev share.
type serveTuning struct {
	RequestTimeout  time.Duration `env:"PLANTSTORE_REQUEST_TIMEOUT" default:"10s" help:"Longest work on one request."`
	ShutdownTimeout time.Duration `env:"PLANTSTORE_SHUTDOWN_TIMEOUT" default:"20s" help:"Longest wait for requests in flight at the end."`
	MaxInFlight     int           `env:"PLANTSTORE_MAX_IN_FLIGHT" default:"512" help:"Deletions tried at a time, without those that wait for locks or for others of the same plant; more wait a moment, then are refused."`
	MaxConnections  int           `env:"PLANTSTORE_MAX_CONNECTIONS" default:"16384" help:"Client connections open at a time. More take the place of idle ones, or wait. Lowered to what the process's open files allow."`
	RateLimit       rateLimit     `env:"PLANTSTORE_RATE_LIMIT" placeholder:"N/s,burst=N" help:"Deletions that each principal may ask for, as 200/s or 600/m,burst=50. Default: any number."`
	TrustedProxies  []network     `env:"PLANTSTORE_TRUSTED_PROXIES" placeholder:"NETWORK,..." help:"Addresses and networks of the proxies whose X-Forwarded-For is believed. Default: none."`
	Profiles        bool          `env:"PLANTSTORE_PROFILES" help:"Have Go's profiler, /debug/pprof/, on the operators' listener."`
	TokenCacheTTL   time.Duration `name:"token-cache-ttl" env:"PLANTSTORE_TOKEN_CACHE_TTL" default:"5s" help:"Longest life of a revoked token; 0s asks the database each time."`
}

// Validate refuses values that can't work.
func (f *serveTuning) Validate() error {
	switch {
	case f.RequestTimeout < 500*time.Millisecond || f.RequestTimeout > 10*time.Minute:
		return fmt.Errorf("--request-timeout (PLANTSTORE_REQUEST_TIMEOUT) is %s: it must be from 500ms to 10m", f.RequestTimeout)
	case f.RequestTimeout > f.ShutdownTimeout:
		return fmt.Errorf("--request-timeout (PLANTSTORE_REQUEST_TIMEOUT) is %s: it must not be longer than --shutdown-timeout (PLANTSTORE_SHUTDOWN_TIMEOUT), which is %s: the end would cut requests off",
			f.RequestTimeout, f.ShutdownTimeout)
	case f.ShutdownTimeout > time.Hour:
		return fmt.Errorf("--shutdown-timeout (PLANTSTORE_SHUTDOWN_TIMEOUT) is %s: it must not be longer than 1h", f.ShutdownTimeout)
	case f.MaxInFlight < 1:
		return fmt.Errorf("--max-in-flight (PLANTSTORE_MAX_IN_FLIGHT) is %d: it must be at least 1", f.MaxInFlight)
	case f.MaxConnections < 1:
		return fmt.Errorf("--max-connections (PLANTSTORE_MAX_CONNECTIONS) is %d: it must be at least 1", f.MaxConnections)
	case f.TokenCacheTTL < 0:
		return fmt.Errorf("--token-cache-ttl (PLANTSTORE_TOKEN_CACHE_TTL) is %s: it must not be negative", f.TokenCacheTTL)
	}
	return nil
}

// Validate refuses values that can't work.
func (c *serveCommand) Validate(parsed *kong.Context) error {
	var err error
	if _, c.setting, err = chosenURL(parsed, "database-url", postgres.ServiceSetting, &c.DatabaseURL, &c.DatabaseURLFile); err != nil {
		return err
	}
	switch {
	case c.OIDCIssuer == "" && (c.OIDCAudience != "" || c.JWKSURL != "" || c.OIDCPrincipalClaim != "sub" || c.OIDCBudget != budget{}):
		return errors.New("--oidc-issuer (PLANTSTORE_OIDC_ISSUER) is not set: without it, a JWT of anybody's would do")
	case c.OIDCIssuer != "" && strings.TrimSpace(c.OIDCAudience) == "":
		return errors.New("--oidc-audience (PLANTSTORE_OIDC_AUDIENCE) is not set: without it, a JWT for any other service would do")
	case c.OIDCIssuer != "" && strings.TrimSpace(c.OIDCPrincipalClaim) == "":
		return errors.New("--oidc-principal-claim (PLANTSTORE_OIDC_PRINCIPAL_CLAIM) is empty")
	}
	for _, s := range []struct{ name, value string }{
		{"--oidc-issuer (PLANTSTORE_OIDC_ISSUER)", c.OIDCIssuer},
		{"--oidc-audience (PLANTSTORE_OIDC_AUDIENCE)", c.OIDCAudience},
		{"--oidc-principal-claim (PLANTSTORE_OIDC_PRINCIPAL_CLAIM)", c.OIDCPrincipalClaim},
	} {
		if strings.TrimSpace(s.value) != s.value {
			return fmt.Errorf("%s is %q: take out what is blank around it, which no JWT has", s.name, s.value)
		}
	}
	if c.OIDCIssuer != "" && c.JWKSURL == "" {
		if err := auth.CheckIssuer(c.OIDCIssuer); err != nil {
			return fmt.Errorf("--oidc-issuer (PLANTSTORE_OIDC_ISSUER): %w", err)
		}
	}
	if c.JWKSURL != "" {
		if err := auth.CheckURL(c.JWKSURL, "https", "file"); err != nil {
			return fmt.Errorf("--jwks-url (PLANTSTORE_JWKS_URL): %w", err)
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return errors.New("--tls-cert (PLANTSTORE_TLS_CERT) and --tls-key (PLANTSTORE_TLS_KEY) go together: one of them is not set")
	}
	if c.TLSCert != "" {
		if c.certificate, err = server.LoadCertificate(c.TLSCert, c.TLSKey); err != nil {
			return err
		}
	}
	if c.DrainDelay < 0 || c.DrainDelay > 10*time.Minute {
		return fmt.Errorf("--drain-delay (PLANTSTORE_DRAIN_DELAY) is %s: it must be from 0s to 10m", c.DrainDelay)
	}
	if err := c.serveTuning.Validate(); err != nil {
		return err
	}
	if err := apart(c.Addr, c.AdminAddr); err != nil {
		return err
	}
	switch {
	case c.DatabaseURL != "" || c.DatabaseURLFile != "":
		return nil
	case !isDatabaseNamed():
		return fmt.Errorf("--database-url (%s) is not set: %s", postgres.ServiceSetting, likeURL)
	}
	return postgres.CheckURL("", "")
}

// Run serves until ctx ends, or until nobody reads its log any more: who starts it
// again then gives it a reader. It takes both ports before anything else.
func (c *serveCommand) Run(ctx context.Context, console *console, parsed *kong.Context) error {
	ctx, console = untilUnread(ctx, console)
	public, err := listen("--addr (PLANTSTORE_ADDR)", c.Addr)
	if err != nil {
		return err
	}
	admin, err := listen("--admin-addr (PLANTSTORE_ADMIN_ADDR)", c.AdminAddr)
	if err != nil {
		return err
	}
	console.warnings = append(console.warnings, composeVariables(os.Environ())...)
	log := newLog(console, c.LogFormat, c.LogLevel)
	// The pool outlives ctx: requests in flight end first.
	open := context.WithoutCancel(ctx)
	var db *postgres.DB
	if c.DatabaseURLFile != "" {
		db, err = postgres.OpenFile(open, c.DatabaseURLFile)
	} else {
		db, err = postgres.OpenFrom(open, c.setting, c.DatabaseURL)
	}
	if err != nil {
		return explained(err, c.setting)
	}
	defer db.Close()
	return serve(ctx, c.serveTuning, service{
		db: db, log: log, public: public, admin: admin, certificate: c.certificate, drainDelay: c.DrainDelay,
		settings: changed(parsed),
		secrets:  c.secrets(),
		issuer:   auth.Issuer{URL: c.OIDCIssuer, JWKS: c.JWKSURL, Audience: c.OIDCAudience, Claim: c.OIDCPrincipalClaim, Budget: plant.Budget(c.OIDCBudget)},
	})
}

// listen takes a port. An address that is none is a bad setting; one that is in use
// may be free later.
func listen(setting, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		return l, nil
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	if bad, ok := errors.AsType[*net.AddrError](err); ok {
		return nil, &exitError{exitUsage, fmt.Errorf("%s is %q: %s: want one as :8080 or 127.0.0.1:8080", setting, addr, bad.Err)}
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return nil, &exitError{exitUsage, fmt.Errorf("%s is %q: %w", setting, addr, err)}
	}
	return nil, fmt.Errorf("cannot listen on %s: %w: choose another address with %s", addr, err, setting)
}

// changed returns the settings that are not their defaults, names and values in turn. A
// database's URL has a password: it is set, and no more is told. Nor are the secrets of
// other URLs.
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

// secrets tells which variables that may hold a secret, or name a file with one, are set,
// by names and values in turn. A flag counts as its variable.
func (c *serveCommand) secrets() (all []any) {
	told := func(name, value string) {
		state := "set"
		if value == "" {
			state = "unset"
		}
		all = append(all, slog.String(name, state))
	}
	told("DATABASE_URL", c.DatabaseURL)
	told("DATABASE_URL_FILE", c.DatabaseURLFile)
	told("PLANTSTORE_TLS_KEY", c.TLSKey)
	for _, name := range []string{"PGPASSWORD", "PGPASSFILE", "PGSSLKEY", "PGSSLPASSWORD", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		told(name, os.Getenv(name))
	}
	return all
}

// tracesTimeout bounds how long the end waits until the last traces are sent.
const tracesTimeout = 5 * time.Second

// endTraces sends the last traces. That they are lost is no fault of the service's.
func endTraces(ctx context.Context, log *slog.Logger, tracer *sdktrace.TracerProvider) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracesTimeout)
	defer cancel()
	if err := tracer.Shutdown(ctx); err != nil {
		log.Warn("traces were not sent", "cause", err.Error())
	}
}

// newLog returns a log that begins with the console's warnings.
func newLog(console *console, format logFormat, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	log := slog.New(slog.NewJSONHandler(console.err, options))
	if format == "text" {
		log = slog.New(slog.NewTextHandler(console.err, options))
	}
	for _, w := range console.warnings {
		log.Warn(w)
	}
	return log
}

// A service is what serve and dev set up in their own ways.
type service struct {
	db            *postgres.DB
	log           *slog.Logger
	public, admin net.Listener
	drainDelay    time.Duration
	certificate   *server.Certificate // nil: plain HTTP
	issuer        auth.Issuer         // without URL: no JWTs are taken
	settings      []any               // those that are not their defaults, for the log
	secrets       []any               // which are set, for the log
}

// lastTimeout is how long the end may take beyond its two time limits, in which the last
// traces are sent. The database's connections are closed after that.
const lastTimeout = tracesTimeout + 3*time.Second

// serve runs the service until ctx ends. A log whose reader stalls holds up whoever
// writes to it, but not the end: then what is left is cut off.
func serve(ctx context.Context, f serveTuning, s service) error {
	done := make(chan error, 1)
	go func() { done <- serveInOrder(ctx, f, s) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	most := s.drainDelay + f.ShutdownTimeout + lastTimeout
	select {
	case err := <-done:
		return err
	case <-time.After(most):
		return fmt.Errorf("the end took longer than %s, and what was under way was cut off: does anybody read the log?", most)
	}
}

// serveInOrder wires the service and runs it until ctx ends, and then to its orderly end.
func serveInOrder(ctx context.Context, f serveTuning, s service) error {
	db, log := s.db, s.log
	db.LogFaults(log)
	tokens := db.Tokens(f.TokenCacheTTL)
	versions := migrate.Versions()
	readiness := doctor.NewReadiness()
	ready := func(ctx context.Context) error {
		err := db.Ready(ctx, versions)
		if err == nil || errors.Is(err, postgres.ErrLocked) {
			err = readiness.Check(ctx, db)
		}
		if e, ok := errors.AsType[*postgres.NotReadyError](err); ok {
			return &server.NotReadyError{Reason: e.Reason, Err: e}
		}
		return err
	}
	connections, err := clientConnections(f.MaxConnections, db.MaxConns())
	if err != nil {
		return err
	}
	if connections < f.MaxConnections {
		log.Warn("fewer client connections than asked for: the process may not open more files", "max_connections", connections, "asked", f.MaxConnections)
	}
	proxies := make([]netip.Prefix, len(f.TrustedProxies))
	for i, n := range f.TrustedProxies {
		proxies[i] = netip.Prefix(n)
	}
	config := server.Config{
		Plants: db.Plants(f.MaxInFlight), Tokens: tokens, Ready: ready,
		Metrics:        []prometheus.Collector{db, tokens},
		Log:            log,
		Profiles:       f.Profiles,
		Certificate:    s.certificate,
		RequestTimeout: f.RequestTimeout, DrainDelay: s.drainDelay, ShutdownTimeout: f.ShutdownTimeout,
		MaxConnections: connections, RateLimit: server.Rate(f.RateLimit), TrustedProxies: proxies,
		Build: server.Build{Version: version, Commit: commit, Schema: migrate.Latest()},
	}
	if s.issuer.URL != "" {
		config.JWTs = auth.NewVerifier(s.issuer, f.TokenCacheTTL, log)
	}
	tracer, err := newTracer(ctx, log)
	if err != nil {
		return err
	}
	if tracer != nil {
		config.Tracer = tracer
		defer endTraces(ctx, log, tracer)
	}
	srv := server.New(config)

	background, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { tokens.NoteUse(background) })
	tasks.Go(func() { db.WatchLedger(background) })
	defer tasks.Wait()
	defer stop()

	log.Info("serving", "version", version, "commit", commit, "go", runtime.Version(), "schema", migrate.Latest(),
		"addr", s.public.Addr().String(), "admin_addr", s.admin.Addr().String(),
		"database_host", db.Address(), "database", db.Database(), "role", db.Role(), "pool", db.MaxConns(),
		"max_in_flight", f.MaxInFlight, "max_connections", connections, "cores", runtime.GOMAXPROCS(0), "traces", tracer != nil,
		slog.Group("settings", s.settings...), slog.Group("secrets", s.secrets...))
	if err := srv.Serve(ctx, s.public, s.admin); err != nil {
		return err
	}
	log.Info("stopped")
	if errors.Is(context.Cause(ctx), errUnread) {
		return errUnread
	}
	return nil
}
