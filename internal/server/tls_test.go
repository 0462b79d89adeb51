package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"plantstore/internal/plant"
)

// A pemPair is a certificate, which is its own authority, and its key.
type pemPair struct{ cert, key []byte }

// newPair makes a pair for plants.example until a time.
func newPair(t *testing.T, until time.Time) pemPair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "plants.example"},
		DNSNames: []string{"plants.example"}, NotBefore: until.Add(-48 * time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pemPair{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})}
}

// files are where a test keeps a pair.
type files struct{ cert, key string }

func newFiles(t *testing.T, p pemPair) files {
	t.Helper()
	f := files{filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")}
	write(t, f.cert, p.cert)
	write(t, f.key, p.key)
	return f
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// withTLS gives a server a certificate, and returns the files and what a client trusts.
func withTLS(t *testing.T, c *Config) (files, *tls.Config) {
	t.Helper()
	pair := newPair(t, time.Now().Add(24*time.Hour))
	f := newFiles(t, pair)
	certificate, err := LoadCertificate(f.cert, f.key)
	if err != nil {
		t.Fatal(err)
	}
	c.Certificate = certificate
	return f, &tls.Config{ServerName: "plants.example", RootCAs: trusting(pair)}
}

func trusting(pairs ...pemPair) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, p := range pairs {
		pool.AppendCertsFromPEM(p.cert)
	}
	return pool
}

// tlsClient returns a client of a server that speaks TLS.
func tlsClient(t *testing.T, l net.Listener, config *tls.Config, http2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return dialAny(l) },
		TLSClientConfig:   config.Clone(),
		ForceAttemptHTTP2: http2,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func dialAny(l net.Listener) (net.Conn, error) {
	if p, ok := l.(*pipeListener); ok {
		return p.dial()
	}
	return net.Dial("tcp", l.Addr().String())
}

func deleteOver(ctx context.Context, c *http.Client, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete, "https://plants.example/plants/1", body)
	if err != nil {
		return nil, err
	}
	name, value, _ := strings.Cut(asAlice, ": ")
	request.Header.Set(name, value)
	answer, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	return answer, nil
}

func TestTLS(t *testing.T) {
	t.Parallel()
	c := testConfig()
	_, trust := withTLS(t, &c)
	s := start(t, c)
	for _, tt := range []struct {
		name    string
		version uint16
		http2   bool
		want    string
		body    string
	}{
		{"1.3 and HTTP/2", tls.VersionTLS13, true, "HTTP/2.0", ""},
		{"1.3 and HTTP/2 with a body", tls.VersionTLS13, true, "HTTP/2.0", "{}"},
		{"1.2 and HTTP/1.1", tls.VersionTLS12, false, "HTTP/1.1", ""},
	} {
		config := trust.Clone()
		config.MaxVersion = tt.version
		client := tlsClient(t, s.public, config, tt.http2)
		for range 2 {
			var body io.Reader
			if tt.body != "" {
				body = io.NopCloser(strings.NewReader(tt.body)) // of a length that is not told
			}
			answer, err := deleteOver(t.Context(), client, body)
			if err != nil || answer.StatusCode != http.StatusNoContent || answer.Proto != tt.want || answer.TLS.Version != tt.version {
				t.Errorf("%s: %v, %v; want 204 by %s", tt.name, answer, err, tt.want)
			}
		}
	}
	old := trust.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if conn, err := tls.Dial("tcp", s.public.Addr().String(), old); err == nil {
		conn.Close()
		t.Error("a client connected with TLS 1.1, want 1.2 at least")
	}
	if status, _, body := exchangeRaw(t, dial(t, s.public), request{method: "GET", target: "/docs"}); status != http.StatusBadRequest {
		t.Errorf("plain HTTP: %d %s, want 400", status, body)
	}
	if status, _, body := exchangeRaw(t, dial(t, s.admin), request{method: "GET", target: "/livez"}); status != http.StatusOK {
		t.Errorf("plain HTTP by an operator: %d %s, want 200", status, body)
	}
}

// The files change one after the other, as they do. Every client connects anew for each
// request.
func TestCertificateIsReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	c := testConfig()
	f, trust := withTLS(t, &c)
	first, err := os.ReadFile(f.cert)
	if err != nil {
		t.Fatal(err)
	}
	second, third := newPair(t, time.Now().Add(36*time.Hour)), newPair(t, time.Now().Add(47*time.Hour))
	trust.RootCAs = trusting(pemPair{cert: first}, second, third)
	s := start(t, c)
	var asked atomic.Int64
	var stop atomic.Bool
	var group sync.WaitGroup
	var serials sync.Map
	for i := range 4 {
		client := tlsClient(t, s.public, trust, i%2 == 0)
		group.Go(func() {
			for !stop.Load() {
				answer, err := deleteOver(t.Context(), client, nil)
				if err != nil || answer.StatusCode != http.StatusNoContent {
					t.Errorf("%v, %v; want 204", answer, err)
					return
				}
				serials.Store(answer.TLS.PeerCertificates[0].SerialNumber.String(), true)
				client.CloseIdleConnections()
				asked.Add(1)
			}
		})
	}
	defer group.Wait()
	defer stop.Store(true)
	serving := func(p pemPair) bool {
		block, _ := pem.Decode(p.cert)
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		_, ok := serials.Load(leaf.SerialNumber.String())
		return ok
	}
	until := func(what string, yes func() bool) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); !yes(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) || t.Failed() {
				t.Fatalf("not so: %s", what)
			}
		}
	}
	more := func(n int64) {
		t.Helper()
		want := asked.Load() + n
		until("requests go on", func() bool { return asked.Load() >= want })
	}
	for _, next := range []pemPair{second, third} {
		more(20)
		write(t, f.cert, next.cert)
		time.Sleep(lookEvery + lookEvery/2) // half a pair is looked at
		more(20)
		write(t, f.key, next.key)
		until("the new certificate is served", func() bool { return serving(next) })
	}
	write(t, f.cert, []byte("nothing"))
	time.Sleep(lookEvery + lookEvery/2)
	more(20)
	expired := newPair(t, time.Now().Add(-time.Hour))
	write(t, f.cert, expired.cert)
	write(t, f.key, expired.key)
	time.Sleep(lookEvery + lookEvery/2)
	more(20)
}

// What is wrong with new files is told once, whichever of the two it is, and again after
// they were of use.
func TestCertificateThatIsNotReplacedIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		until := time.Now().Add(24 * time.Hour)
		first, second, stray := newPair(t, until), newPair(t, until), newPair(t, until)
		f := newFiles(t, first)
		c, err := LoadCertificate(f.cert, f.key)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		c.config(slog.New(slog.NewTextHandler(&log, nil)))
		const told, replaced = "was not replaced", "was replaced"
		for _, step := range []struct {
			name      string
			cert, key []byte
			said      string // empty: nothing
			serves    []byte
		}{
			{"the same", first.cert, first.key, "", first.cert},
			{"another key", first.cert, stray.key, told, first.cert},
			{"a new pair", second.cert, second.key, replaced, second.cert},
			{"another key again", second.cert, stray.key, told, second.cert},
			{"another certificate", first.cert, second.key, "", second.cert}, // as before: they don't go together
			{"the pair that is served", second.cert, second.key, "", second.cert},
			{"another key after that", second.cert, stray.key, told, second.cert},
		} {
			write(t, f.cert, step.cert)
			write(t, f.key, step.key)
			log.Reset()
			var pair *tls.Certificate
			for range 3 {
				time.Sleep(lookEvery)
				if pair, err = c.now(nil); err != nil {
					t.Fatal(err)
				}
			}
			if block, _ := pem.Decode(step.serves); !bytes.Equal(pair.Certificate[0], block.Bytes) {
				t.Errorf("%s: it does not serve the certificate that it should", step.name)
			}
			want := map[bool]int{true: 1}[step.said != ""]
			if got := strings.Count(log.String(), "\n"); got != want || !strings.Contains(log.String(), step.said) {
				t.Errorf("%s: the log says %q, want %d line with %q", step.name, log.String(), want, step.said)
			}
		}
	})
}

// A certificate that nobody renews ends the service for its clients.
func TestCertificateThatIsNotRenewedIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pair := newPair(t, time.Now().Add(24*time.Hour)) // it began 24 hours ago
		f := newFiles(t, pair)
		c, err := LoadCertificate(f.cert, f.key)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		c.config(slog.New(slog.NewTextHandler(&log, nil)))
		const told, replaced = "and nobody renewed it", "was replaced"
		for _, step := range []struct {
			after time.Duration
			renew bool
			said  string // empty: nothing
		}{
			{19 * time.Hour, false, ""},
			{time.Hour, false, told},
			{time.Hour, false, ""},
			{9 * time.Hour, false, ""}, // it has expired
			{time.Second, true, replaced},
			{time.Hour, false, ""},
		} {
			time.Sleep(step.after)
			if step.renew {
				renewed := newPair(t, time.Now().Add(24*time.Hour))
				write(t, f.cert, renewed.cert)
				write(t, f.key, renewed.key)
			}
			log.Reset()
			if _, err := c.now(nil); err != nil {
				t.Errorf("after %s: %v, want none", step.after, err)
			}
			if said := log.String(); (said != "") != (step.said != "") || !strings.Contains(said, step.said) {
				t.Errorf("after %s: the log says %q, want %q", step.after, said, step.said)
			}
		}
	})
}

func TestCertificatesThatAreOfNoUse(t *testing.T) {
	t.Parallel()
	good, other := newPair(t, time.Now().Add(time.Hour)), newPair(t, time.Now().Add(time.Hour))
	late := time.Now().Add(72 * time.Hour)
	for name, tt := range map[string]struct {
		files files
		want  string
	}{
		"no certificate": {files{"/nonexistent/cert.pem", "/nonexistent/key.pem"}, "the certificate for TLS can't be read: open /nonexistent/cert.pem: no such file or directory"},
		"no key":         {files{newFiles(t, good).cert, "/nonexistent/key.pem"}, "the key for TLS can't be read: open /nonexistent/key.pem: no such file or directory"},
		"wrong key":      {newFiles(t, pemPair{good.cert, other.key}), " are no certificate and its key: tls: private key does not match public key"},
		"empty":          {newFiles(t, pemPair{}), " are no certificate and its key: tls: failed to find any PEM data in certificate input"},
		"no PEM":         {newFiles(t, pemPair{[]byte("x"), good.key}), " are no certificate and its key: tls: failed to find any PEM data in certificate input"},
		"expired":        {newFiles(t, newPair(t, time.Now().Add(-time.Minute))), " only: renew it"},
		"not yet":        {newFiles(t, newPair(t, late)), " is not valid before " + late.Add(-48*time.Hour).UTC().Format(time.RFC3339)},
	} {
		_, err := LoadCertificate(tt.files.cert, tt.files.key)
		if err == nil || !strings.HasSuffix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line that ends with %q", name, err, tt.want)
		}
	}
}

// What connections.go promises holds for TLS: idle connections make room, and so do those
// that never finish their handshake.
func TestConnectionsMakeRoomUnderTLS(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := testConfig()
			c.MaxConnections = 10
			_, trust := withTLS(t, &c)
			s := run(t, c, newPipeListener(), newPipeListener())
			for i := range 3 * c.MaxConnections {
				began := time.Now()
				answer, err := deleteOver(t.Context(), tlsClient(t, s.public, trust, http2), nil)
				if took := time.Since(began); err != nil || answer.StatusCode != 204 || took > 0 {
					t.Errorf("client %d: %v, %v after %s; want 204 at once", i, answer, err, took)
				}
				time.Sleep(10 * time.Millisecond)
			}
			var silent []net.Conn
			for range c.MaxConnections {
				silent = append(silent, dial(t, s.public))
			}
			began := time.Now()
			answer, err := deleteOver(t.Context(), tlsClient(t, s.public, trust, http2), nil)
			if took := time.Since(began); err != nil || answer.StatusCode != 204 || took > 2*speechless {
				t.Errorf("beside handshakes that do not begin: %v, %v after %s; want 204 within %s", answer, err, took, 2*speechless)
			}
			time.Sleep(5 * time.Second)
			for i, conn := range silent {
				if isOpen(conn) {
					t.Errorf("connection %d without a handshake is open after 5 s", i)
				}
			}
		})
	}
}

// A connection on which a request is being answered never makes room.
func TestBusyConnectionsStayUnderTLS(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const slow = 3 * time.Second
			c := testConfig()
			c.MaxConnections = 2
			c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) {
				time.Sleep(slow)
				return plant.Result{}, nil
			})
			_, trust := withTLS(t, &c)
			s := run(t, c, newPipeListener(), newPipeListener())
			var group sync.WaitGroup
			began := time.Now()
			for range 2 * c.MaxConnections {
				client := tlsClient(t, s.public, trust, http2)
				group.Go(func() {
					if answer, err := deleteOver(t.Context(), client, nil); err != nil || answer.StatusCode != 204 {
						t.Errorf("%v, %v; want 204", answer, err)
					}
				})
			}
			group.Wait()
			if took := time.Since(began); took < 2*slow || took > 2*slow+2*speechless {
				t.Errorf("%d clients on %d connections took %s, want about %s", 2*c.MaxConnections, c.MaxConnections, took, 2*slow)
			}
		})
	}
}

// One connection of HTTP/2 can't hold the memory of hundreds of requests.
func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		_, trust := withTLS(t, &c)
		trust.NextProtos = []string{"h2"}
		s := run(t, c, newPipeListener(), newPipeListener())
		conn := tls.Client(dial(t, s.public), trust)
		if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		// RFC 9113, 4.1 and 6.5.1: a frame of settings, each a number of two bytes and a
		// value of four.
		frame := make([]byte, 9)
		if _, err := io.ReadFull(conn, frame); err != nil {
			t.Fatal(err)
		}
		settings := make([]byte, int(frame[0])<<16|int(frame[1])<<8|int(frame[2]))
		if _, err := io.ReadFull(conn, settings); err != nil {
			t.Fatal(err)
		}
		got := uint32(0)
		for pair := range slices.Chunk(settings, 6) {
			if binary.BigEndian.Uint16(pair) == 3 { // SETTINGS_MAX_CONCURRENT_STREAMS
				got = binary.BigEndian.Uint32(pair[2:])
			}
		}
		if got != maxStreams {
			t.Errorf("the server allows %d requests at a time on a connection, want %d", got, maxStreams)
		}
	})
}

// A connection of HTTP/2 has as much time for its first request as any other.
func TestGreetedConnectionsHaveTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.MaxConnections = 1
		_, trust := withTLS(t, &c)
		trust.NextProtos = []string{"h2"}
		s := run(t, c, newPipeListener(), newPipeListener())
		began := time.Now()
		first := tls.Client(dial(t, s.public), trust)
		// RFC 9113, 3.4: the preface, and empty settings.
		if _, err := io.WriteString(first, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		closed := make(chan time.Duration, 1)
		go func() {
			io.Copy(io.Discard, first)
			closed <- time.Since(began)
		}()
		synctest.Wait()
		if answer, err := deleteOver(t.Context(), tlsClient(t, s.public, trust, true), nil); err != nil || answer.StatusCode != 204 {
			t.Errorf("%v, %v; want 204", answer, err)
		}
		if took := <-closed; took < speechless || took > 2*speechless {
			t.Errorf("the first connection made room after %s, want it to have %s", took, speechless)
		}
	})
}
