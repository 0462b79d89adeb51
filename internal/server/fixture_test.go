package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

type fakePlants func(context.Context, plant.Deletion) (plant.Result, error)

func (f fakePlants) Delete(ctx context.Context, d plant.Deletion) (plant.Result, error) {
	return f(ctx, d)
}

type fakeTokens func(context.Context, string) (auth.Principal, error)

func (f fakeTokens) Authenticate(ctx context.Context, token string) (auth.Principal, error) {
	return f(ctx, token)
}

const (
	// secret is part of each text that no answer and no log line may contain.
	secret = "SECRET"
	// asAlice may delete, asBob may not.
	asAlice = "Authorization: Bearer alice" + secret
	asBob   = "Authorization: Bearer bob" + secret
)

// errDriver is a driver's error, which is for the log only.
var errDriver = errors.New("ERROR: relation does not exist (SQLSTATE 42P01)")

// testConfig returns the settings of a server where every plant can be deleted.
func testConfig() Config {
	return Config{
		Plants: fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) { return plant.Result{}, nil }),
		Tokens: fakeTokens(func(_ context.Context, token string) (auth.Principal, error) {
			switch token {
			case "alice" + secret:
				return auth.Principal{Name: "alice", Scopes: []string{auth.ScopeDelete}, Budget: plant.Budget{Most: 500, Period: time.Hour}}, nil
			case "carol" + secret:
				return auth.Principal{Name: "carol", Scopes: []string{auth.ScopeDelete}}, nil
			case "bob" + secret:
				return auth.Principal{Name: "bob", Scopes: []string{"plants:read"}}, nil
			}
			return auth.Principal{}, fmt.Errorf("%w: %w", auth.ErrInvalidToken, errDriver)
		}),
		Ready:           func(context.Context) error { return nil },
		Log:             slog.New(slog.DiscardHandler),
		RequestTimeout:  10 * time.Second,
		ShutdownTimeout: 10 * time.Second,
		MaxConnections:  64,
	}
}

// A running is a Server that is serving on pipes, in a synctest bubble.
type running struct {
	*Server
	public, admin *pipeListener
	// end stops the server, and stopped then has the error that Serve returned.
	end     context.CancelFunc
	stopped <-chan error
}

// run serves until the test is over.
func run(t *testing.T, c Config) running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	r := running{New(c), newPipeListener(), newPipeListener(), cancel, stopped}
	done := make(chan struct{})
	go func() {
		defer close(done)
		stopped <- r.Serve(ctx, r.public, r.admin)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

// stop ends the server and waits for it: then everything is logged and counted.
func (r running) stop(t *testing.T) {
	t.Helper()
	r.end()
	if err := <-r.stopped; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// A request is sent as it is, even if it is malformed.
type request struct {
	method, target string
	headers        []string
	body           string
}

// del is the deletion of plant 1 by Alice, with further headers.
func del(headers ...string) request {
	return request{method: "DELETE", target: "/plants/1", headers: append([]string{asAlice}, headers...)}
}

func (q request) String() string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: plants.example\r\n%s\r\n%s", q.method, q.target,
		strings.Join(append(slices.Clone(q.headers), ""), "\r\n"), q.body)
}

// http returns the request as net/http reads it.
func (q request) http(t *testing.T) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(q.String())))
	if err != nil {
		t.Fatalf("%s %s: %v", q.method, q.target, err)
	}
	return r
}

// An answer is the server's answer to a request. Its error is zero if it reports none.
type answer struct {
	status int
	header http.Header
	body   []byte
	error  errorBody
}

// code is the code of the answer's error, or its status if it has none.
func (a answer) code() int {
	if a.error.Error != 0 {
		return int(a.error.Error)
	}
	return a.status
}

// ask hands a request to the public handler.
func (s *Server) ask(t *testing.T, q request) answer {
	t.Helper()
	return s.askFrom(t, "127.0.0.1:1234", q)
}

// askFrom hands a request to the public handler, from an address.
func (s *Server) askFrom(t *testing.T, address string, q request) answer {
	t.Helper()
	r := q.http(t)
	r.RemoteAddr = address
	return s.answer(t, r, q.target)
}

// answer returns the public handler's answer, which must be one that openapi.yaml describes.
func (s *Server) answer(t *testing.T, r *http.Request, target string) answer {
	t.Helper()
	w := httptest.NewRecorder()
	s.Public().ServeHTTP(w, r)
	body := w.Body.Bytes()
	if r.Method == http.MethodHead {
		body = nil // as net/http does
	}
	header := w.Result().Header
	return answer{w.Code, header, body, checkAnswer(t, r.Method, target, w.Code, header, body)}
}

// send sends a request over a connection, and reads the answer, whatever it is. The
// status is 0 if there is none.
func send(t *testing.T, conn net.Conn, q request) answer {
	t.Helper()
	if _, err := io.WriteString(conn, q.String()); err != nil {
		t.Errorf("%s %s: %v", q.method, q.target, err)
		return answer{}
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: q.method})
	if err != nil {
		t.Errorf("%s %s: %v", q.method, q.target, err)
		return answer{}
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Errorf("%s %s: body of the answer: %v", q.method, q.target, err)
	}
	if response.Close {
		response.Header.Set("Connection", "close") // ReadResponse took it out
	}
	a := answer{status: response.StatusCode, header: response.Header, body: body}
	_ = json.Unmarshal(body, &a.error) // if it is one
	return a
}

// plainHeaders are those of any HTTP answer, which openapi.yaml leaves out.
var plainHeaders = []string{"Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "Connection", "Content-Encoding", "Content-Length", "Content-Security-Policy",
	"Content-Type", "Date", "Vary", "X-Content-Type-Options"}

// checkAnswer compares an answer with openapi.yaml and returns its error, which is zero if
// it has none.
func checkAnswer(t *testing.T, method, target string, status int, header http.Header, body []byte) errorBody {
	t.Helper()
	if isPage(target) && status < 400 {
		return errorBody{}
	}
	op := deletion()
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: &http.Request{Method: http.MethodGet}, // for HEAD, nothing would be checked
			Route:   &routers.Route{Spec: published(), Operation: op},
		},
		Status: status,
		Header: header,
		Options: &openapi3filter.Options{
			IncludeResponseStatus: true,
			ExcludeResponseBody:   method == http.MethodHead || status == http.StatusOK,
		},
	}
	input.SetBodyBytes(body)
	if err := openapi3filter.ValidateResponse(t.Context(), input); err != nil {
		t.Errorf("%s %s: answer %d %v %q is not in openapi.yaml: %v", method, target, status, header, body, err)
		return errorBody{}
	}
	response := op.Responses.Status(status).Value
	documented := slices.Clone(plainHeaders)
	for name := range response.Headers {
		documented = append(documented, http.CanonicalHeaderKey(name))
	}
	for name, values := range header {
		if !slices.Contains(documented, name) {
			t.Errorf("%s %s: header %s of status %d is not in openapi.yaml", method, target, name, status)
		}
		if len(values) != 1 {
			t.Errorf("%s %s: header %s has the values %q, want one", method, target, name, values)
		}
	}
	contentType := header.Get("Content-Type")
	switch {
	case status == http.StatusNoContent && (len(body) > 0 || contentType != ""):
		t.Errorf("%s %s: 204 with body %q and Content-Type %q, want neither", method, target, body, contentType)
	case status >= 400 && contentType != "application/json":
		t.Errorf("%s %s: error with Content-Type %q, want application/json", method, target, contentType)
	}
	for _, leak := range []string{secret, "SQLSTATE", `\u003c`} { // people read it, browsers don't render it
		if status >= 400 && bytes.Contains(body, []byte(leak)) {
			t.Errorf("%s %s: error %q shows %q", method, target, body, leak)
		}
	}
	if status < 400 || method == http.MethodHead {
		return errorBody{}
	}

	var e errorBody
	if err := json.Unmarshal(body, &e); err != nil {
		t.Errorf("%s %s: error %q: %v", method, target, body, err)
	}
	examples := response.Content["application/json"].Examples
	if examples[strconv.Itoa(int(e.Error))] == nil || int(e.Error)/100 != status {
		t.Errorf("%s %s: error %d with status %d, want one of %v", method, target, e.Error, status, slices.Sorted(maps.Keys(examples)))
	}
	return e
}

// isPage reports whether a target is a page of the documentation, which is no operation of the
// interface. The pages' errors are like all others.
func isPage(target string) bool {
	path, _, _ := strings.Cut(target, "?")
	return path == "/openapi.yaml" || path == "/docs" || strings.HasPrefix(path, "/docs/")
}

// A pipeListener is a network in memory, in the time of testing/synctest.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	broken chan struct{} // closed by a test
}

func newPipeListener() *pipeListener {
	return &pipeListener{make(chan net.Conn), make(chan struct{}), make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-l.broken:
		return nil, errors.New("broken")
	}
}

func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// connect returns the client's end of a new connection, once it is accepted.
func (l *pipeListener) connect() (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// dial returns a connection, until the test is over.
func (l *pipeListener) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := l.connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
