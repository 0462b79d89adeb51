// Package server is the HTTP side: it makes a plant.Deletion of a request, and an answer of
// its outcome. Every error answer of the public listener is written by one function, from
// one table (errors.go). Requests that net/http rejects by itself, such as those
// that are not HTTP, get plain text.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// A plantRepository deletes plants. The errors of Delete are those of package plant;
// anything else is answered as a fault of ours.
type plantRepository interface {
	Delete(context.Context, plant.Deletion) (plant.Result, error)
}

// An authenticator returns the principal of a token. Its errors are auth.ErrInvalidToken
// and, if it could not find out, plant.ErrUnavailable or auth.ErrKeysUnknown.
type authenticator interface {
	Authenticate(ctx context.Context, token string) (auth.Principal, error)
}

// Config has the settings of a Server. JWTs, Metrics, Tracer, Profiles, Certificate, DrainDelay,
// RateLimit, TrustedProxies, CORSOrigins and Build may be zero.
type Config struct {
	Plants plantRepository
	Tokens authenticator
	// JWTs is for tokens that have the shape of one. Nil: none is accepted.
	JWTs authenticator
	// Ready returns nil when requests can be served, or else an error whose method NotReady
	// returns the reason, one of notReadyReasons. Its text is for an operator.
	Ready func(context.Context) error
	// Metrics are shown beside the server's own.
	Metrics []prometheus.Collector
	Log     *slog.Logger
	// Tracer makes a span of each request. Nil: none is made.
	Tracer trace.TracerProvider
	// Profiles adds /debug/pprof/ to the operators' listener.
	Profiles bool
	// Certificate makes the public listener speak TLS 1.2 or newer, and HTTP/2. Nil: plain
	// HTTP/1.1.
	Certificate *Certificate
	// RequestTimeout limits the work on one request. It goes on when the client hangs up.
	RequestTimeout time.Duration
	// DrainDelay is how long requests are still accepted after ctx has ended, until load
	// balancers have noticed.
	DrainDelay time.Duration
	// ShutdownTimeout limits the wait for requests in flight after that.
	ShutdownTimeout time.Duration
	// MaxConnections limits the open client connections. More wait to be accepted.
	MaxConnections int
	// RateLimit limits the requests of each principal. Zero: no limit.
	RateLimit Rate
	// TrustedProxies set X-Forwarded-For. That of anybody else is ignored.
	TrustedProxies []netip.Prefix
	// CORSOrigins are the origins of web pages that may use this service. None: CORS is off.
	CORSOrigins []string
	Build       Build
}

// Build identifies the program.
type Build struct {
	Version, Commit string
	Schema          int64 // newest migration
}

// A Server serves the public interface, and the operators' pages on a listener of their own.
type Server struct {
	Config
	failures *limiters[netip.Prefix]
	rates    *limiters[string] // nil: no limit
	metrics  *metrics
	tracer   trace.Tracer // nil: no spans
	inFlight atomic.Int64
	draining atomic.Bool
	state    atomic.Pointer[readiness]
	public   *echo.Echo
}

// New makes a Server.
func New(c Config) *Server {
	s := &Server{Config: c, failures: newLimiters[netip.Prefix](failureRate)}
	if c.RateLimit != (Rate{}) {
		s.rates = newLimiters[string](c.RateLimit)
	}
	if c.Tracer != nil {
		s.tracer = c.Tracer.Tracer("plantstore/internal/server")
	}
	s.public = s.routes()
	s.metrics = newMetrics(c, &s.inFlight, s.public.Routes())
	s.setReadiness(&readiness{reasonUnknown, errors.New("the database has not been checked yet")})
	return s
}

const plantsRoute = "/plants/:id"

// routes is the public interface. Authentication belongs to the route, not to a group: a
// group's 404 and 405 would become answers about tokens.
func (s *Server) routes() *echo.Echo {
	e := echo.New()
	e.Use(s.observe)
	if len(s.CORSOrigins) > 0 {
		e.Use(s.cors())
	}
	// Joined once: Echo would join the middlewares of a route for each request.
	e.DELETE(plantsRoute, s.deadline(s.bearer(auth.ScopeDelete, s.deletePlant)))
	read := []string{http.MethodGet, http.MethodHead}
	e.Match(read, "/openapi.yaml", openAPIPage.serve)
	e.Match(read, "/docs", serveDocs)
	e.Match(read, "/docs/:asset", serveDocsAsset)
	return e
}

// Public returns the handler of the public listener.
func (s *Server) Public() http.Handler { return s.public }

const (
	// adminConnections limits the open connections of operators.
	adminConnections = 64
	// maxHeaderBytes limits a request's line and headers.
	maxHeaderBytes = 16 << 10
	// maxStreams limits the requests at a time on a connection of HTTP/2. RFC 9113, 6.5.2,
	// recommends no less.
	maxStreams = 100
)

// Serve answers on both listeners until ctx ends. Then it is not ready, goes on for the
// drain delay, accepts no more requests, and waits up to the shutdown timeout for those in
// flight. It returns nil if all of them were answered. A listener that fails ends it with
// an error, without the drain delay. Both listeners are closed when it returns.
func (s *Server) Serve(ctx context.Context, public, admin net.Listener) error {
	publicServer := &http.Server{
		Handler:                      s.Public(),
		ReadHeaderTimeout:            5 * time.Second,
		ReadTimeout:                  10 * time.Second,
		WriteTimeout:                 s.RequestTimeout + 5*time.Second,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               maxHeaderBytes,
		DisableGeneralOptionsHandler: true, // "OPTIONS *" is answered like any other path
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		// Clients can make net/http log any number of lines.
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	if s.Certificate != nil {
		publicServer.TLSConfig = s.Certificate.config(s.Log)
	}
	adminServer := &http.Server{
		Handler:        s.Admin(),
		ReadTimeout:    5 * time.Second, // of headers and idle connections, too
		WriteTimeout:   15 * time.Second,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       publicServer.ErrorLog,
	}
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var group errgroup.Group
	serve := func(srv *http.Server, l net.Listener, connections int) {
		limitConnections(srv, connections)
		group.Go(func() (err error) {
			if srv.TLSConfig != nil {
				err = srv.ServeTLS(l, "", "")
			} else {
				err = srv.Serve(l)
			}
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			err = fmt.Errorf("serve on %s: %w", l.Addr(), err)
			fail(err)
			return err
		})
	}
	serve(publicServer, public, s.MaxConnections)
	serve(adminServer, admin, adminConnections)
	group.Go(func() error {
		s.watch(failed)
		return nil
	})

	<-failed.Done()
	s.draining.Store(true)
	if ctx.Err() != nil {
		s.Log.Info("draining", "delay", s.DrainDelay.String())
		time.Sleep(s.DrainDelay)
	}
	// The operators' listener closes last. Until then /readyz says that the server is not ready.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ShutdownTimeout)
	defer cancel()
	var err error
	if publicServer.Shutdown(end) != nil {
		// Shutdown waits for new connections without a request, too.
		if n := s.inFlight.Load(); n > 0 {
			err = fmt.Errorf("requests were still in flight after %s: %d", s.ShutdownTimeout, n)
		}
		publicServer.Close()
	}
	adminServer.Close()
	return errors.Join(err, group.Wait())
}
