// Package server is the HTTP side: it turns a request into a plant.Deletion and
// what came of it into an answer. Every error answer of the public listener is
// written in one place, from one table (errors.go). What net/http refuses before
// it calls this package, such as a request that is not HTTP, gets plain text.
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

// A plantRepository deletes plants. The errors of Delete are those of package
// plant; anything else is answered as a fault of ours.
type plantRepository interface {
	Delete(context.Context, plant.Deletion) (plant.Result, error)
}

// An authenticator tells whom a token was issued to. Its errors are
// auth.ErrInvalidToken and, when it could not find out, plant.ErrUnavailable,
// plant.ErrHindered or auth.ErrKeysUnknown.
type authenticator interface {
	Authenticate(ctx context.Context, token string) (auth.Principal, error)
}

// A tokenStore is an authenticator that looks tokens up.
type tokenStore interface {
	authenticator
	// Knows reports, without a look-up, whether a token is good by what is known of it.
	Knows(token string) bool
}

// Config is what a Server needs. JWTs, Metrics, Tracer, Profiles, Certificate, DrainDelay,
// ShutdownTimeout, RateLimit and TrustedProxies may be zero; the rest is required.
type Config struct {
	Plants plantRepository
	Tokens tokenStore
	// JWTs is for tokens that have the shape of one. Nil: none is taken.
	JWTs authenticator
	// Ready returns nil when requests can be served, else why not: a *NotReadyError
	// or, where the database hinders deletions, any other.
	Ready func(context.Context) error
	// Metrics are shown beside the server's own.
	Metrics []prometheus.Collector
	Log     *slog.Logger
	// Tracer makes spans of requests and deletions. Nil: none are made.
	Tracer trace.TracerProvider
	// Profiles has /debug/pprof/ on the operators' listener.
	Profiles bool
	// Certificate makes the public listener speak TLS 1.2 or newer, and HTTP/2 to
	// those who do. Nil: plain HTTP/1.1.
	Certificate *Certificate
	// RequestTimeout bounds the work on one deletion, whether its client stays
	// for so long or not.
	RequestTimeout time.Duration
	// DrainDelay is how long requests are still taken after the end was asked
	// for, so that load balancers can notice.
	DrainDelay time.Duration
	// ShutdownTimeout bounds the wait for requests in flight after that.
	ShutdownTimeout time.Duration
	// MaxConnections bounds the open client connections. Further ones take the
	// place of idle ones, or wait.
	MaxConnections int
	// RateLimit bounds the deletions that each principal asks for. Zero: any number.
	RateLimit Rate
	// TrustedProxies are those whose X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix
	Build          Build
}

// Build says what is running.
type Build struct {
	Version, Commit string
	Schema          int64 // newest migration
}

// A Server serves the public interface and, on a listener of its own, what
// operators need.
type Server struct {
	Config
	failures *failures
	rates    *rates
	metrics  *metrics
	draining atomic.Bool
	looks    looks
	public   *echo.Echo
}

// New makes a Server.
func New(c Config) *Server {
	s := &Server{Config: c, failures: newFailures(), rates: newRates(c.RateLimit)}
	s.metrics = newMetrics(c)
	s.public = s.routes()
	s.metrics.begin(s.public.Routes())
	return s
}

// routes is the public interface, whole. Authentication is attached to the
// route, not to a group: a group's 404 and 405 would become answers about
// tokens.
func (s *Server) routes() *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) { s.fail(c, err) }
	e.IPExtractor = addressOf(s.TrustedProxies)
	e.Use(s.observe, s.recover)

	// Joined here, once: Echo would join middlewares of a route anew for each request.
	e.DELETE(plantsRoute, s.deadline(s.bearer(requireScope(auth.ScopeDelete)(s.deletePlant))))
	e.Match(readMethods, "/openapi.yaml", serveOpenAPI)
	e.Match(readMethods, "/docs", serveDocs)
	e.Match(readMethods, "/docs/:asset", serveDocsAsset)
	return e
}

const plantsRoute = "/plants/:id"

var readMethods = []string{http.MethodGet, http.MethodHead}

// Public returns the handler of the public listener.
func (s *Server) Public() http.Handler {
	if s.Tracer == nil {
		return s.public
	}
	return s.traced(s.public)
}

// AdminConnections bounds the open connections of operators.
const AdminConnections = 64

// maxHeaderBytes bounds a request's line and headers.
const maxHeaderBytes = 16 << 10

// maxStreams bounds the requests that are under way on a connection of HTTP/2, each of which
// may hold headers and an answer that the client does not read. RFC 9113, 6.5.2, recommends
// no less: clients assume as many until they are told.
const maxStreams = 100

// Serve answers on both listeners until ctx ends. Then it reports itself not
// ready, goes on for the drain delay, takes no more requests, and waits up to the
// shutdown timeout for those in flight. It returns nil if all of them were
// answered. A listener that fails ends it, too, without the drain delay and with
// an error. Both listeners are closed when it returns.
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
		ErrorLog:                     newHTTPLog(s.Log),
	}
	if s.Certificate != nil {
		publicServer.TLSConfig = s.Certificate.config(s.Log)
	}
	adminServer := &http.Server{
		Handler:        s.Admin(),
		ReadTimeout:    5 * time.Second, // the headers included
		WriteTimeout:   15 * time.Second,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       publicServer.ErrorLog,
	}
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var group errgroup.Group
	serve := func(srv *http.Server, l net.Listener) {
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
	clients := limited(publicServer, public, s.MaxConnections)
	clients.madeRoom = s.metrics.sheds.WithLabelValues(shedConnections).Inc
	serve(publicServer, clients)
	serve(adminServer, limited(adminServer, admin, AdminConnections))
	group.Go(func() error {
		s.watch(failed)
		return nil
	})

	<-failed.Done()
	s.draining.Store(true)
	if ctx.Err() != nil {
		// Where nobody takes the line, the drain goes on.
		group.Go(func() error {
			s.Log.Info("draining", "delay", s.DrainDelay.String())
			return nil
		})
		time.Sleep(s.DrainDelay)
	}
	// The operators' listener stays to the last: unready, but there.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ShutdownTimeout)
	defer cancel()
	var err error
	if publicServer.Shutdown(end) != nil {
		// It looks every half second only, and takes connections without a request for busy.
		if clients.busy() > 0 {
			err = fmt.Errorf("requests were still in flight after %s", s.ShutdownTimeout)
		}
		publicServer.Close()
	}
	adminServer.Close()
	return errors.Join(err, group.Wait())
}
