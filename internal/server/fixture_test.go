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

// Knows is true of Alice's token only.
func (f fakeTokens) Knows(token string) bool { return token == "alice"+secret }

const (
	// secret is in everything that no answer and no log line may show.
	secret = "SECRET"
	// asAlice may delete, asBob may not.
	asAlice = "Authorization: Bearer alice" + secret
	asBob   = "Authorization: Bearer bob" + secret
)

// errDriver stands for what a driver says: for the log, and for nobody else.
var errDriver = errors.New("ERROR: relation does not exist (SQLSTATE 42P01)")

// testConfig is of a server where every plant can be deleted.
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

// A running is a Server that is serving.
type running struct {
	*Server
	public, admin net.Listener
	// end makes it stop, and stopped then tells what Serve returned.
	end     context.CancelFunc
	stopped <-chan error
}

// run serves on the two listeners until the test is over.
func run(t *testing.T, c Config, public, admin net.Listener) running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	r := running{New(c), public, admin, cancel, stopped}
	done := make(chan struct{})
	go func() {
		defer close(done)
		stopped <- r.Serve(ctx, public, admin)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

// start serves on two ports of this machine.
func start(t *testing.T, c Config) running {
	t.Helper()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	return run(t, c, listen(), listen())
}

// stop ends the server and waits for it: then everything is logged and counted.
func (r running) stop(t *testing.T) {
	t.Helper()
	r.end()
	if err := <-r.stopped; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// dial opens a connection, for two minutes: no test proves that it is done sooner.
func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	var conn net.Conn
	var err error
	if p, ok := l.(*pipeListener); ok {
		conn, err = p.dial()
	} else {
		conn, err = net.Dial("tcp", l.Addr().String())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(2 * time.Minute))
	return conn
}

// A request is sent as it is, right or wrong.
type request struct {
	method, target string
	headers        []string
	body           string
}

// del is the deletion of plant 1 by Alice, with further headers.
func del(headers ...string) request {
	return request{method: "DELETE", target: "/plants/1", headers: append([]string{asAlice}, headers...)}
}

// An answer is what came back. Its error is zero unless it has one.
type answer struct {
	status int
	header http.Header
	error  errorBody
}

// code is the code of the answer's error, or its status if it has none.
func (a answer) code() int {
	if a.error.Error != 0 {
		return int(a.error.Error)
	}
	return a.status
}

// ask sends a request to the public listener and returns the answer, which must
// be one that openapi.yaml describes.
func (r running) ask(t *testing.T, q request) answer {
	t.Helper()
	return askOn(t, dial(t, r.public), q)
}

func askOn(t *testing.T, conn net.Conn, q request) answer {
	t.Helper()
	status, header, body := exchangeRaw(t, conn, q)
	if status == 0 {
		return answer{}
	}
	return answer{status, header, checkAnswer(t, q.method, q.target, status, header, body)}
}

// exchangeRaw sends a request and reads the answer, whatever it is. The status is
// 0 if there is none.
func exchangeRaw(t *testing.T, conn net.Conn, q request) (int, http.Header, []byte) {
	t.Helper()
	var raw strings.Builder
	fmt.Fprintf(&raw, "%s %s HTTP/1.1\r\nHost: plants.example\r\n", q.method, q.target)
	for _, header := range q.headers {
		raw.WriteString(header + "\r\n")
	}
	raw.WriteString("\r\n" + q.body)
	if _, err := io.WriteString(conn, raw.String()); err != nil {
		t.Errorf("%s %s: %v", q.method, q.target, err)
		return 0, nil, nil
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: q.method})
	if err != nil {
		t.Errorf("%s %s: %v", q.method, q.target, err)
		return 0, nil, nil
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Errorf("%s %s: body of the answer: %v", q.method, q.target, err)
	}
	if response.Close {
		response.Header.Set("Connection", "close") // ReadResponse took it out
	}
	return response.StatusCode, response.Header, body
}

// plainHeaders are those of any HTTP answer, which openapi.yaml leaves out.
var plainHeaders = []string{"Connection", "Content-Encoding", "Content-Length", "Content-Security-Policy",
	"Content-Type", "Date", "X-Content-Type-Options"}

// checkAnswer holds an answer against openapi.yaml and returns its error, which
// is zero if it has none.
func checkAnswer(t *testing.T, method, target string, status int, header http.Header, body []byte) errorBody {
	t.Helper()
	if isPage(target) && status < 400 {
		checkPage(t, target, status, header)
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
	for _, leak := range []string{secret, "SQLSTATE"} {
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

// isPage reports whether a target is of the description, which is no operation of the
// interface. Errors there are like all others.
func isPage(target string) bool {
	path, _, _ := strings.Cut(target, "?")
	return path == "/openapi.yaml" || path == "/docs" || strings.HasPrefix(path, "/docs/")
}

func checkPage(t *testing.T, target string, status int, header http.Header) {
	t.Helper()
	for _, name := range []string{headerRequestID, "ETag", "X-Content-Type-Options"} {
		if http.Header.Get(header, name) == "" {
			t.Errorf("%s: no header %s", target, name)
		}
	}
	if status != http.StatusOK && status != http.StatusNotModified {
		t.Errorf("%s: answer %d, want 200, 304 or an error", target, status)
	}
}

// A pipeListener is a network in memory. Unlike a real one it goes along with
// the clock of testing/synctest.
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

func (l *pipeListener) dial() (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
