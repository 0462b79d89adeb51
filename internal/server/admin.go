package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Admin returns the handler of the operators' listener: /livez says that the process
// runs, /readyz whether it can serve and if not why, /metrics is for Prometheus, and
// /debug/pprof/ for Go's profiler.
func (s *Server) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch state := s.state.Load(); {
		case s.draining.Load():
			http.Error(w, "shutting down", http.StatusServiceUnavailable)
		case state.err != nil:
			http.Error(w, state.err.Error(), http.StatusServiceUnavailable)
		default:
			io.WriteString(w, "ready\n")
		}
	})
	if s.Profiles {
		// pprof's page of the command line is left out, as that may have a password.
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}

// A notReadyError is an error that has one of notReadyReasons.
type notReadyError interface {
	error
	NotReady() string
}

const (
	reasonMisconfigured = "misconfigured" // what 'plantstore doctor' explains
	reasonDraining      = "shutting_down"
	reasonUnknown       = "" // not checked yet
)

// notReadyReasons are the values of a label: those of package postgres, and shutting_down.
var notReadyReasons = [...]string{"unreachable", "read_only", "schema_behind", reasonMisconfigured, reasonDraining}

// readiness is the result of a check.
type readiness struct {
	reason string
	err    error // nil: ready
}

const (
	// checkEvery is how often the readiness is checked, and checkTimeout limits each check.
	checkEvery   = time.Second
	checkTimeout = 2 * time.Second
)

// watch checks the readiness for /readyz and the metrics, one check at a time. It logs
// each change. It returns when ctx ends.
func (s *Server) watch(ctx context.Context) {
	defer s.setReadiness(&readiness{reasonDraining, errors.New("shutting down")})
	for {
		once, cancel := context.WithTimeout(ctx, checkTimeout)
		err := s.Ready(once)
		cancel()
		if ctx.Err() != nil {
			return
		}
		state := &readiness{err: err}
		if err != nil {
			state.reason = reasonMisconfigured
			if e, ok := errors.AsType[notReadyError](err); ok {
				state.reason = e.NotReady()
			}
		}
		before := s.state.Load()
		s.setReadiness(state)
		switch {
		case err == nil && before.err != nil:
			s.Log.Info("ready")
		case err != nil && (before.err == nil || before.err.Error() != err.Error()):
			s.Log.Warn("not ready", "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(checkEvery):
		}
	}
}

func (s *Server) setReadiness(state *readiness) {
	s.state.Store(state)
	set := func(g interface{ Set(float64) }, on bool) {
		if on {
			g.Set(1)
		} else {
			g.Set(0)
		}
	}
	set(s.metrics.ready, state.err == nil)
	for _, r := range notReadyReasons {
		set(s.metrics.reasons.WithLabelValues(r), r == state.reason)
	}
}
